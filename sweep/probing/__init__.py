"""What a configuration costs before it is trained: estimated memory and short measurements.

Here belongs what needs a model and a step, but no trial."""
