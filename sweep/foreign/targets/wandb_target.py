"""The trials of a study as offline runs of W&B, which ``wandb sync`` uploads; nothing is sent by this program."""

from collections.abc import Sequence
from pathlib import Path

from sweep.foreign.foreign_packages import import_package
from sweep.foreign.own_runs import SERIES, RunContents


def write_wandb(runs: Sequence[RunContents], folder: Path, final: Path) -> None:  # noqa: ARG001
    """Writes ``folder / wandb / offline-run-*`` for each run; their project is the study. Raises ``InputError`` where
    the package wandb is not installed."""
    wandb = import_package("wandb", "wandb")
    # no code, machine, console or statistics: only what is on record
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, disable_code=True, save_code=False,
        x_disable_stats=True, x_disable_meta=True,
    )  # fmt: skip
    try:
        for run in runs:
            made = wandb.init(
                project=run.study, name=f"trial {run.number}", dir=str(folder), mode="offline", settings=settings,
                config={**run.settings, **run.facts},
            )  # fmt: skip
            for step, values in run.curves:
                made.log({f"{SERIES}{key}": value for key, value in values.items()}, step=step)
            made.summary.update(dict(run.results))
            made.finish(exit_code=0 if run.outcome == "complete" else 1)
    finally:
        wandb.teardown()
