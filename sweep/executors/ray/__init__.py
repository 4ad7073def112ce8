"""Trials on a Ray cluster.

Here belongs everything that speaks with Ray; the actors use the process executor."""
