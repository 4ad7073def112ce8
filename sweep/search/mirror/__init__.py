"""Optuna's own tables as a copy of the records, for optuna-dashboard.

Here belongs the translation to Optuna's terms; no module of this project reads the copy."""
