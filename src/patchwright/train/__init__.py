"""Training: trajectories into samples, samples into weights."""
