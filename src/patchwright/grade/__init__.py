"""Grading: a patch and a task in, a verdict out."""
