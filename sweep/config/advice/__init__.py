"""Advice on a study before it runs: known pitfalls, each with its reason.

Here belongs what a study file alone shows; what cannot work at all is refused where a configuration is validated."""
