"""`python -m patchwright.cli`."""

from patchwright.cli.app import main

main()
