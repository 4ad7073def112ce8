"""The text of a study file: every key with its reason in a comment."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.trial_config import find_rivals
from sweep.search.guide.decision_tree import Decisions, Setting
from sweep.search.guide.study_size import CONFIGURATIONS, Size, pick_batches

_WIDTH = 120
_USED = 0.8  # of its share of the time, which the confirming is expected to use
_DECAY, _ACCUMULATION = "optimizer.weight_decay", "batch.accumulation"
Settings = dict[str, Setting]


class TimeLimits(NamedTuple):
    """Seconds that a run of the study may take, and those of its search."""

    seconds: float
    search_seconds: float


def split_time(seconds: float, size: Size) -> TimeLimits:
    """The limits of a study of ``size`` whose search and confirming together are to take ``seconds``."""
    return TimeLimits(seconds, seconds / (1.0 + _USED * size.confirm_share))


@dataclass(frozen=True, kw_only=True)
class StudyDraft:
    """What a study file is written from. ``changes`` are keys that the user sets over all others."""

    name: str
    question: str
    decisions: Decisions
    size: Size
    limits: TimeLimits | None = None
    full_epochs: int | None = None  # of a study for which time does not matter
    changes: Mapping[str, Any] = field(default_factory=dict)


def write_study(draft: StudyDraft, head: Sequence[str] = ()) -> str:
    """The study as TOML, below a comment of the lines ``head``."""
    study, base, space = ({each.key: each for each in part} for part in (_study(draft), _base(draft), _space(draft)))
    for key, value in draft.changes.items():
        part = study if key.partition(".")[0] in StudySpec.model_fields else base
        for fixed in (key, *find_rivals(key)):
            base.pop(fixed, None)
            space.pop(fixed, None)
        part[key] = Setting(key, value, "as it was given")
    if draft.decisions.given:
        point = {key: _pick_first(draft.decisions, setting) for key, setting in space.items()}
        study["first"] = Setting("first", [point], "the batch size that was given is tried in any case")
    return "\n".join(
        [
            *(f"# {line}" for line in head),
            *("", *_write(study.values())),
            *("", "[base]", *_write(base.values())),
            *("", "[space]", *_write(space.values())),
            "",
        ]
    )


def _study(draft: StudyDraft) -> Iterator[Setting]:
    size, limits = draft.size, draft.limits
    yield Setting("name", draft.name, "the folder of the records")
    yield Setting("question", draft.question, "")
    if limits is None:
        per_batch = size.num_trials // max(size.num_batches * size.num_models, 1)
        reason = f"{per_batch} for each batch size and model; tuned is one from {CONFIGURATIONS} on"
    else:
        reason = "search trials at most: usually search_timeout ends the search before"
    yield Setting("trials", size.num_trials, reason)
    if limits is not None:
        yield Setting("timeout", f"{limits.seconds:.0f}s", "of a run")
        yield Setting("search_timeout", f"{limits.search_seconds:.0f}s", "of it; the rest is for fresh seeds")
    named = f"{FEWEST_SEEDS} fresh seeds of each configuration that the answer names"
    yield Setting("confirm.share", size.confirm_share, f"of the search's seconds, for at least {named}")
    yield from draft.decisions.study


def _base(draft: StudyDraft) -> Iterator[Setting]:
    decisions, size = draft.decisions, draft.size
    if size.num_models == 1:
        yield Setting("model.name", decisions.models[0], _explain_models(decisions))
    yield from decisions.base
    yield Setting("budget.epochs", size.epochs, _explain_epochs(draft))


def _explain_models(decisions: Decisions) -> str:
    return "as it was given" if decisions.are_models_given else "by the size of the images"


def _explain_epochs(draft: StudyDraft) -> str:
    reason = "passes over the training images"
    if draft.limits is None or draft.size.epochs == draft.full_epochs:
        return reason
    if draft.size.epochs == 1:
        return f"{reason}: the time allows a single one of {draft.full_epochs}"
    return f"{reason}: the time allows so many of {draft.full_epochs}"


def _space(draft: StudyDraft) -> Iterator[Setting]:
    decisions, size = draft.decisions, draft.size
    if size.num_models > 1:
        models = list(decisions.models[: size.num_models])
        yield Setting("model.name", {"choice": models}, _explain_models(decisions))
    batches = pick_batches(decisions, size.num_batches)
    yield Setting("batch.micro", {"choice": _list_micro(decisions, batches)}, _explain_micro(decisions, batches))
    counts = {*decisions.accumulation.value["choice"], *([decisions.given.accumulation] if decisions.given else [])}
    if len(counts) > 1:
        yield decisions.accumulation._replace(value={"choice": sorted(counts)})
    yield from (each for each in decisions.space if each.key != _DECAY or size.tunes_decay)


def _list_micro(decisions: Decisions, batches: Sequence[int]) -> list[int]:
    # a given batch size has a split of its own
    least, given = min(decisions.accumulation.value["choice"]), decisions.given
    sizes = {max(batch // decisions.num_devices // least, 1) for batch in batches if not given or batch != given.batch}
    own = {given.micro} if given else set()
    return sorted({min(size, decisions.largest_micro) for size in sizes} | own)


def _explain_micro(decisions: Decisions, batches: Sequence[int]) -> str:
    where = f" over {decisions.num_devices} devices" if decisions.num_devices > 1 else ""
    if len(decisions.accumulation.value["choice"]) > 1:
        return f"times the accumulation they are the effective batch sizes{where}"
    return f"effective batch sizes of {batches[0]} to {batches[-1]}{where}"


def _pick_first(decisions: Decisions, setting: Setting) -> Any:
    assert decisions.given is not None
    own = {"batch.micro": decisions.given.micro, _ACCUMULATION: decisions.given.accumulation}
    form, values = next(iter(setting.value.items()))
    usual = values[0] if form == "choice" else float(f"{sqrt(values[0] * values[1]):.2g}")
    return own.get(setting.key, usual)


def _write(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        line = f"{setting.key} = {_write_value(setting.value)}"
        comment = f"  # {setting.reason}" if setting.reason else ""
        if len(line + comment) <= _WIDTH:
            yield line + comment
            continue
        yield from (f"# {part}" for part in textwrap.wrap(setting.reason, _WIDTH - 2))
        yield line


def _quote(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_quote(key)} = {_write_value(each)}' for key, each in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
