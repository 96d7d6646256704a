"""Patchwright inside other people's programs: what they call, in the shapes they expect."""
