"""For all tests."""

import signal

# A shell starts what it runs in the background with Ctrl-C ignored, and so would the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
