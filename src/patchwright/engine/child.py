"""The child process of `engine/process.py`: a model behind a socket.

Started as `python -m patchwright.engine.child FD`; both ends are this program, so frames are pickles. It ends
when the socket does: an engine does not outlive its parent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from patchwright.engine.core import Core
from patchwright.engine.frontend import Event
from patchwright.engine.wire import Abort, Close, Load, Start, Started, Submit, receive, send
from patchwright.errors import ConfigError


def main() -> None:
    """Serve one model until the parent says so or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes us
    link = socket.socket(fileno=int(sys.argv[1]))
    lock = threading.Lock()

    def deliver(events: Sequence[Event]) -> None:
        with lock, suppress(OSError):  # the parent is gone: the receiving side ends us
            send(link, list(events))

    start = receive(link)
    assert isinstance(start, Start)
    try:
        core = Core(start.path, start.config, deliver)
    except ConfigError as error:
        send(link, Started(error=str(error)))
        return
    send(link, Started(max_context=core.max_context))
    _serve(link, core)


def _serve(link: socket.socket, core: Core) -> None:
    while True:
        match receive(link):
            case Submit(key, prompt, sampling, streaming):
                core.submit(key, prompt, sampling, streaming)
            case Abort(key):
                core.abort(key)
            case Load(key, weights):
                core.load(key, weights)
            case Close() | None:
                # At once, in mid-step: whoever waited for that step has gone.
                os._exit(0)


if __name__ == "__main__":
    main()
