"""Recipes: the only place where everything meets."""
