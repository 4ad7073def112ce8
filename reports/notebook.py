"""What a notebook shows: a study, records, an answer and figures as HTML and pictures, in the words of the page and of
the command line."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

from jinja2 import Environment, StrictUndefined

from reports.evidence import format_column, gather_evidence
from reports.figure import Absent, Figure
from reports.figures.all_figures import make_figures
from reports.labels import (
    OUTCOME_NAMES,
    format_effect,
    format_estimate,
    format_metric,
    format_probability,
    metric_label,
)
from reports.page.data import format_keys
from reports.texts import CURVE_HEADS, USE_TITLES, Cell, describe_batch_answer, describe_use_price, describe_use_setting
from sweep.analysis.answer import USE_MEANINGS, Answer, BatchAnswer, Recommendation
from sweep.analysis.comparable import USUAL_OBJECTIVES
from sweep.analysis.statistics import read_numbers, read_text, varying_keys
from sweep.config.advice import find_pitfalls
from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import format_count
from sweep.config.study import StudySpec, describe_cost
from sweep.config.trial import key_label
from sweep.records.frames import FRAME_PARTS, Frames
from sweep.records.loading import load_frames

_MAX_TRIALS = 20  # rows of a table of trials
_NOT_LOADED = "not loaded; load_frames(..., {field}=True)"


@dataclass(frozen=True, kw_only=True)
class _ViewPart:
    """A table with its ``heads``, or a list of ``items``, each a text with what is set behind it; ``command`` is to be
    copied, ``command_for`` what it does. Empty parts are left out."""

    head: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    items: tuple[Cell, ...] = ()
    command: str = ""
    command_for: str = ""


@dataclass(frozen=True)
class _View:
    """What a cell of a notebook shows."""

    title: str
    subtitle: str
    parts: tuple[_ViewPart, ...]


def _write_html(view: _View) -> str:
    """``view`` as HTML, every text escaped. It has no color and no style sheet, so that it is readable in a light and
    in a dark theme."""
    template = (resources.files("reports") / "page" / "views.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(view=view)


def render_study(spec: StudySpec) -> str:
    """A study before it runs: its question, what it trains, its keys, and the known pitfalls."""
    keys = tuple(((key, ""), (value, "")) for key, value in format_keys(spec))
    advice = tuple((f"{each.key}: {each.statement}", each.remedy) for each in find_pitfalls(spec))
    parts = (
        _ViewPart(heads=("Key", "Value"), rows=keys),
        _ViewPart(head="Advice", items=advice) if advice else _ViewPart(),
    )
    return _write_html(_View(f"Study {spec.name}: {describe_cost(spec)}", spec.question, parts))


def render_frames(frames: Frames) -> str:
    """Records: which frames there are, how the trials ended, and the latest trials."""
    names = ", ".join(frames.studies["study"].tolist()) or "none"
    counts = Counter(map(str, read_text(frames.trials, "outcome")))
    outcomes = ", ".join(f"{count:,} {OUTCOME_NAMES.get(name, name)}" for name, count in counts.most_common())
    shown = frames.trials.tail(_MAX_TRIALS)
    latest = f"the latest {len(shown)} of " if len(shown) < len(frames.trials) else ""
    parts = (
        _ViewPart(heads=("Frame", "Rows", "Columns"), rows=tuple(_list_frames(frames))),
        _tabulate_trials(frames, len(shown), f"trials: {latest}{format_count(len(frames.trials), 'row')}"),
    )
    return _write_html(_View(f"Records of {names}", f"Trials: {outcomes or 'none'}", parts))


def _list_frames(frames: Frames) -> Iterator[tuple[Cell, ...]]:
    for part in FRAME_PARTS:
        frame = getattr(frames, part.field)
        if frame is None:
            yield (part.field, ""), ("", _NOT_LOADED.format(field=part.field)), ("", "")
        else:
            yield (part.field, ""), (f"{len(frame):,}", ""), (f"{frame.shape[1]:,}", "")


def _tabulate_trials(frames: Frames, num_rows: int, head: str) -> _ViewPart:
    trials, spec = frames.trials.tail(num_rows), frames.spec
    swept = tuple(spec.space) if spec else varying_keys(frames.trials)
    objectives = spec.objectives if spec else USUAL_OBJECTIVES
    columns = [
        [str(number) for number in trials["number"]],
        [str(phase) for phase in trials["phase"]],
        [OUTCOME_NAMES.get(str(name), str(name)) for name in read_text(trials, "outcome")],
        *(format_column(trials, key) for key in swept),
        *([format_metric(name, value) for value in read_numbers(trials, name)] for name in objectives),
        [str(flags) for flags in read_text(trials, "quality_flags")],
    ]
    heads = ("Trial", "Phase", "Outcome", *map(key_label, swept), *map(metric_label, objectives), "Quality flags")
    rows = tuple(tuple((text, "") for text in row) for row in zip(*columns, strict=True))
    return _ViewPart(head=head, heads=heads, rows=rows)


def render_answer(answer: Answer) -> str:
    """The answer as ``sweep recommend`` prints it: statements, tuned batch sizes, uses, other facts and notes."""
    parts = [] if answer.batch_size is None else list(_show_batch_sizes(answer.batch_size))
    if answer.no_complete_trial:
        parts.append(_ViewPart(items=((answer.no_complete_trial, ""),)))
    parts += [_show_uses(answer), _show_facts(answer)]
    parts.append(
        _ViewPart(head="Notes", items=tuple((note, "") for note in answer.notes)) if answer.notes else _ViewPart()
    )
    return _write_html(_View(f"Answer of study {answer.study}", answer.validation.statement, tuple(parts)))


def _show_batch_sizes(batch: BatchAnswer) -> Iterator[_ViewPart]:
    texts = describe_batch_answer(batch)
    yield _ViewPart(
        head="Batch size", items=texts.statements, command=texts.command, command_for="To settle more, run:"
    )
    yield _ViewPart(head="The best at each batch size", heads=CURVE_HEADS, rows=texts.rows)
    yield _ViewPart(items=tuple((line, "") for line in (*texts.models, *texts.remarks)))


def _show_uses(answer: Answer) -> _ViewPart:
    named = [item for item in answer.uses.values() if item.number is not None]
    metrics = list(dict.fromkeys(name for item in named for name in item.values))
    heads = ("Use", "Configuration", *map(metric_label, metrics), "Probability")
    rows = [_use_row(item, metrics) for item in answer.uses.values()]
    return _ViewPart(head="Uses", heads=heads, rows=tuple(rows))


def _use_row(item: Recommendation, metrics: list[str]) -> tuple[Cell, ...]:
    title = (USE_TITLES[item.use], USE_MEANINGS[item.use])
    if item.number is None:
        lack = (
            f"not enough data; run: {item.missing}" if item.missing else "no configuration that was tried is eligible"
        )
        return title, (lack, ""), *((("", ""),) * (len(metrics) + 1))
    settings = ", ".join(describe_use_setting(item, key) for key in item.settings)
    values = (format_estimate(name, *item.values[name]) if name in item.values else ("–", "") for name in metrics)
    sure = (format_probability(item.probability), "settled" if item.is_settled else "not settled")
    where = f"trial {item.number}, effective batch size {item.global_batch_size}{describe_use_price(item)}"
    return title, (settings, where), *values, sure


def _show_facts(answer: Answer) -> _ViewPart:
    rows = tuple(
        (
            (fact.statement, f"{fact.detail}; n = {fact.n}" if fact.detail else ""),
            (
                format_effect(fact.unit, fact.value),
                f"not enough data; run: {fact.missing}" if fact.missing else "",
            ),
        )
        for fact in answer.facts.values()
    )
    return _ViewPart(head="Other facts", heads=("Fact", "Value"), rows=rows)


@final
@dataclass(frozen=True)
class FigureSet(Mapping[str, Figure]):
    """The figures of a report by name, as data; a notebook draws the one that a cell returns. ``absent`` are those that
    the records cannot fill, each with what to record."""

    figures: dict[str, Figure]
    absent: tuple[Absent, ...]

    def __getitem__(self, name: str) -> Figure:
        if name not in self.figures:
            raise InputError(f"{describe_unknown('figure', name, self.figures)} Absent ones are in .absent.")
        return self.figures[name]

    def __contains__(self, name: object) -> bool:
        return name in self.figures

    def get(self, name: str, default: Any = None) -> Any:
        """The figure ``name``; ``default`` where it is absent."""
        return self.figures.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __repr__(self) -> str:
        return f"FigureSet({', '.join(self.figures)})"

    def _repr_html_(self) -> str:
        rows = tuple(((name, ""), (figure.title, figure.finding)) for name, figure in self.figures.items())
        absent = tuple((f"{each.title}: {each.remedy}", "") for each in self.absent)
        parts = (
            _ViewPart(heads=("Name", "Figure"), rows=rows),
            _ViewPart(head="Not in these records", items=absent) if absent else _ViewPart(),
        )
        return _write_html(_View(format_count(len(rows), "figure"), "", parts))


def collect_figures(records: Frames | str | Path) -> FigureSet:
    """The figures that ``sweep report`` draws, as data; in a notebook one that a cell returns is drawn.

    Args:
        records: frames of one study with their evaluations, or the path or URL to load them from.

    Raises:
        InputError: no records there, or frames without evaluations.
    """
    frames = load_frames(records, evaluations=True) if isinstance(records, str | Path) else records
    if frames.evaluations is None:
        raise InputError("the evaluations were not loaded; use load_frames(path, evaluations=True).")
    made = make_figures(gather_evidence(frames))
    first = [made.answer] if isinstance(made.answer, Figure) else []
    return FigureSet({figure.name: figure for figure in (*first, *made.figures)}, tuple(made.absent))
