"""Estimators: intervals, spreads, shrinkage, Pareto dominance, hypervolume.

Here belongs arithmetic on arrays and frames that depends on neither a use nor a claim."""
