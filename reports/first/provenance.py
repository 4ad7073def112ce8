"""What was run: data, models, budget, trials, device, date and commit, as the records hold them."""

import pandas as pd

from reports.evidence import Evidence
from reports.labels import format_setting, key_label
from sweep.analysis.statistics import plain_value, read_text
from sweep.config.errors import show_name
from sweep.config.study_sections import FEWEST_SEEDS
from sweep.config.units import format_count

_MAX_NAMED = 4
_FRESH = "(seeds that the search did not use)"
# key of a budget, and how it reads after its value
_BUDGETS = {
    "epochs": "epochs", "steps": "steps", "samples": "samples", "seconds": "seconds",
    "target_accuracy": "as the target accuracy",
}  # fmt: skip


def describe_provenance(evidence: Evidence) -> tuple[str, ...]:
    """The parts of the line of provenance; what is not on record is named as such, or left out where there is no trial
    to have it."""
    trials = evidence.trials
    source = evidence.frames.source
    parts = [
        f"records from elsewhere ({source.program}, SHA-256 {source.digest[:12]}...)" if source else "",
        _describe_images(evidence),
        _list_values(trials, "model.name"),
        _describe_budget(trials),
        _list_values(trials, "optimizer.name"),
        describe_basis(evidence),
        _list_texts(trials, "device") or ("device not on record" if len(trials) else ""),
        _describe_dates(evidence),
        _describe_commits(evidence),
    ]
    return tuple(part for part in parts if part)


def describe_basis(evidence: Evidence) -> str:
    """What the answer rests on, in one clause."""
    done, frame = len(evidence.search), evidence.configurations
    if not len(frame):
        return "no trial has completed"
    begin = f"{format_count(done, 'search trial')} completed with one seed{'' if done == 1 else ' each'}"
    if not evidence.num_confirmed:
        return f"{begin}; none trained again with fresh seeds {_FRESH}; a recommendation requires {FEWEST_SEEDS}"
    chosen = frame[frame["confirmed"].to_numpy(dtype=bool)]
    if not done:
        return _describe_equal_seeds(chosen)
    counts = sorted(set(chosen["num_seeds"].tolist()))
    seeds = format_count(counts[0], "fresh seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} fresh seeds"
    how_many = format_count(len(chosen), "configuration")
    return f"{begin}; {how_many} trained again with {seeds} {_FRESH}"


def _describe_equal_seeds(chosen: pd.DataFrame) -> str:
    # records of another program may have no run that others were chosen by
    num_seeds = format_count(int(chosen["num_seeds"].max()), "seed")
    return f"{format_count(len(chosen), 'configuration')} trained with {num_seeds} each, none chosen by its result"


def _describe_images(evidence: Evidence) -> str:
    data = evidence.frames.data
    name = show_name(data.name) if data else _list_values(evidence.trials, "data.name") or "data set not on record"
    if data is None or data.num_train is None or data.num_val is None:
        num_images = evidence.answer.validation.num_images
        return f"{name}: {num_images:,} validation images" if num_images else f"{name} (images not on record)"
    return f"{name}: {data.num_train:,} training and {data.num_val:,} validation images"


def _describe_budget(trials: pd.DataFrame) -> str:
    given = {name: _distinct(trials, f"config.budget.{name}") for name in _BUDGETS}
    parts = [f"{_join(values)} {_BUDGETS[name]}" for name, values in given.items() if values]
    if {*_distinct(trials, "config.rules.epochs")} - {"none"}:
        parts = [f"{part} at the reference batch, by rule at others" for part in parts]
    return " or ".join("1 epoch" if part == "1 epochs" else part for part in parts)


def _list_values(trials: pd.DataFrame, key: str) -> str:
    values = _distinct(trials, f"config.{key}")
    if values or not len(trials):
        return _join([show_name(value) for value in values])
    return f"{key_label(key)} not on record"


def _list_texts(trials: pd.DataFrame, column: str) -> str:
    return _join([show_name(text) for text in sorted(set(read_text(trials, column)) - {""})])


def _distinct(trials: pd.DataFrame, column: str) -> list[str]:
    if column not in trials.columns:
        return []
    values = (plain_value(value) for value in trials[column].dropna().unique().tolist())
    return sorted(format_setting(value) for value in values if value not in (None, ""))


def _describe_dates(evidence: Evidence) -> str:
    started = pd.to_datetime(evidence.frames.attempts["started_at"], utc=True).dropna()
    if not len(started):
        return "date not on record" if len(evidence.trials) else ""
    first, last = (f"{moment:%Y-%m-%d}" for moment in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"


def _describe_commits(evidence: Evidence) -> str:
    frame = evidence.frames.environments
    known = set(read_text(frame, "project_commit")) - {""} if "project_commit" in frame.columns else set()
    if not known:
        return "commit not on record" if len(evidence.trials) else ""
    return f"commit {_join(sorted(show_name(commit[:7]) for commit in known))}"


def _join(values: list[str]) -> str:
    more = len(values) - _MAX_NAMED
    return ", ".join(values[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
