"""A node of boxes in a container of Modal, for a pool anywhere.

    modal secret create patchwright-node TOKEN=$(openssl rand -hex 32)
    NODE=0 BOXES=16 modal deploy -m patchwright.integrations.modal.boxes
    patchwright pool serve --node https://WORKSPACE--patchwright-node-0-node.modal.run

One app is one machine, so a box stays where it was made; NODE=1, 2, ... are more of them. TLS ends at Modal;
beyond it whoever has the node's token is let in. Boxes are namespace boxes in Modal's own sandbox: `/healthz`
tells whether its kernel makes them, and a pool gives no leases on a node that says no.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import modal

from patchwright.integrations.modal.common import Wish, program

__all__ = ["PORT", "app", "command", "image", "keep_token", "node"]

PORT = 5000
_DAY = 86_400
_REQUESTS = 1000
_MEMORY_MB = 1024
"""Asked for, per box."""
_TOKEN = Path("/run/patchwright/node.token")

wish = Wish.of()
image = program()
app = modal.App(f"patchwright-node-{wish.node}")


def command(boxes: int, token: Path = _TOKEN, port: int = PORT) -> list[str]:
    """What the container runs. TLS ends before it, hence plain HTTP."""
    listen = ["--host", "0.0.0.0", "--port", str(port), "--plain-http"]
    limits = ["--max-boxes", str(boxes), "--token-file", str(token)]
    return [sys.executable, "-m", "patchwright.cli", "node", "serve", *listen, *limits]


def keep_token(text: str, file: Path = _TOKEN) -> dict[str, str]:
    """Write the secret for the node alone; returns the environment without it, for boxes are its children."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(f"{text.strip()}\n", encoding="ascii")
    return {name: value for name, value in os.environ.items() if name != "TOKEN"}


@app.function(
    image=image,
    cpu=float(wish.boxes),
    memory=_MEMORY_MB * wish.boxes,
    secrets=[modal.Secret.from_name("patchwright-node", required_keys=["TOKEN"])],
    env={"BOXES": str(wish.boxes), "NODE": str(wish.node)},
    min_containers=1,
    max_containers=1,
    timeout=_DAY,
)
@modal.concurrent(max_inputs=_REQUESTS)
@modal.web_server(PORT, startup_timeout=60)
def node() -> None:
    """Start the node; Modal waits until it listens."""
    subprocess.Popen(command(Wish.of().boxes), env=keep_token(os.environ["TOKEN"]))
