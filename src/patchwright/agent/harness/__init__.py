"""The coding agents that come with Patchwright: each pinned, with the settings it can be trained under."""
