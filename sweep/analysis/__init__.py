"""What records say: fronts, intervals, the answer, the findings. Imports neither torch nor Optuna."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.analysis.answer.recommend import recommend

__all__ = ["recommend"]


def __getattr__(name: str) -> Any:
    # loaded at first use: the commands that only read records want to answer fast
    if name == "recommend":
        from sweep.analysis.answer.recommend import recommend

        return recommend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
