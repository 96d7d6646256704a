"""Agents: programs that work on a task in a box."""
