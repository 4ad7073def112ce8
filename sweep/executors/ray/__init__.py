"""Trials on a Ray cluster.

Here belongs everything that uses Ray; the actors use the process executor."""
