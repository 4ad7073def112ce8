"""The answer: which configuration to use, what it costs, with which probability it is right, and what is missing.

Here belongs what leads to a recommendation; general estimators belong to `sweep.analysis.statistics`."""
