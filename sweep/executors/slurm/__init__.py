"""Trials as jobs of a Slurm cluster.

Here belongs everything that uses Slurm; a job uses the process executor."""
