"""Rollouts: one task into one graded trajectory, and many of them at once."""
