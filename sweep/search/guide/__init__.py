"""The guide: from a few answers and what probes show to a study file, its size and its forecast.

Here belongs what decides the content of a study from answers; questions are asked in `sweep.cli`."""
