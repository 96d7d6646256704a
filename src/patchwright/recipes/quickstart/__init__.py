"""`patchwright quickstart`: the whole line, from nothing to a policy that fixes bugs, on any machine."""
