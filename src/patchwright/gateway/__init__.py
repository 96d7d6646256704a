"""The recording OpenAI-compatible endpoint between agents and engines."""
