"""Optuna's own tables as a copy of the records, for optuna-dashboard.

Here belongs the translation to Optuna's terms; nothing of ours reads the copy."""
