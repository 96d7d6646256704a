"""Boxes: the protocol, its backends, and the conformance suite every backend passes."""
