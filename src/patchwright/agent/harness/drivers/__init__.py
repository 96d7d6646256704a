"""Programs of ours that are laid into kits and run by the kits' Python, not by this program's."""
