"""Tasks: where they come from, how they are made and checked."""
