"""Trajectories out of runs as data sets, and published data sets in as runs."""
