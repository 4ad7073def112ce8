"""The words with which other programs state how a run ended, as outcomes; "" for a run that has not ended."""

_WANDB = {
    "finished": "complete", "failed": "crashed", "crashed": "crashed", "killed": "cancelled", "preempted": "cancelled",
    "running": "", "pending": "", "preempting": "",
}  # fmt: skip
_MLFLOW = {"FINISHED": "complete", "FAILED": "crashed", "KILLED": "cancelled", "RUNNING": "", "SCHEDULED": ""}
_OPTUNA = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "crashed", "RUNNING": "", "WAITING": ""}

STATES: dict[str, dict[str, str]] = {
    "W&B (API)": _WANDB,
    "W&B (runs table)": _WANDB,
    "MLflow": _MLFLOW,
    "MLflow (search_runs)": _MLFLOW,
    "Optuna": _OPTUNA,
    "Optuna (trials_dataframe)": _OPTUNA,
    "Neptune": {"false": "complete", "true": "crashed"},  # sys/failed
}
