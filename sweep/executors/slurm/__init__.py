"""Trials as jobs of a Slurm cluster.

Here belongs everything that speaks with Slurm; a job uses the process executor."""
