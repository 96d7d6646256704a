"""Patchwright trains models that repair software: tasks, sandboxes, agents, grades, training, one line."""

__version__ = "0.1.0"
