"""The ways a rank fails while another waits for it. No torch, so that the processes start fast."""

import os
import signal


def fail(error):
    raise error


def die():
    os.kill(os.getpid(), signal.SIGKILL)
