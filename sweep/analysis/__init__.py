"""Statistics of records: Pareto fronts, confidence intervals, the answer, the findings.

Here belongs what is computed from frames alone. `costs` decides what a trial's time is worth, `comparable` which trials
are compared. `recommendation` is the answer as one page; `candidates`, `response` and `tuned_batches` are its
arithmetic, `statements` its sentences. `findings` tests the claims of `claim_table`.

Imports neither torch nor Optuna."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.analysis.recommendation import recommend

__all__ = ["recommend"]


def __getattr__(name: str) -> Any:
    # loaded at first use, because commands that only read records have to answer fast
    if name == "recommend":
        from sweep.analysis.recommendation import recommend

        return recommend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
