"""What a notebook shows: a study, records, an answer and figures as HTML and pictures, in the words of the page and of
the command line. Every text is escaped, and nothing has a color, so that it is readable in a light and a dark theme."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Never, final

from markupsafe import Markup

from reports.evidence import gather_evidence
from reports.figure import Absent, Figure
from reports.figures.all_figures import make_figures
from reports.labels import OUTCOME_NAMES, format_effect, format_estimate, metric_label
from reports.page.data import format_keys
from reports.texts import (
    Cell,
    describe_batch_answer,
    describe_use_price,
    describe_use_setting,
    head_curve,
    name_use,
)
from sweep.analysis.answer import Answer, Recommendation, explain_use
from sweep.analysis.statistics import read_text
from sweep.config.advice import find_pitfalls
from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import Quality, format_count, format_probability
from sweep.config.study import StudySpec, describe_cost
from sweep.records.frames import FRAME_PARTS, Frames
from sweep.records.loading import load_frames


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup().join(parts)


def _show(title: str, subtitle: str, *parts: Markup) -> str:
    return Markup("<div><p><strong>{}</strong><br>{}</p>{}</div>").format(title, subtitle, _join(parts))


def _list(head: str, items: Iterable[Cell]) -> Markup:
    """Texts, each with a note behind it; nothing without one."""
    lines = [Markup("<li>{} <em>{}</em></li>").format(text, f"({note})" if note else "") for text, note in items]
    return Markup("<p><strong>{}</strong></p><ul>{}</ul>").format(head, _join(lines)) if lines else Markup()


def _table(head: str, heads: Iterable[str], rows: Iterable[Iterable[Cell]]) -> Markup:
    def lay(row: Iterable[Cell]) -> Markup:
        cell, small = Markup('<td style="text-align: left">{}{}</td>'), Markup("<br><small>{}</small>")
        cells = (cell.format(value, small.format(note) if note else "") for value, note in row)
        return Markup("<tr>{}</tr>").format(_join(cells))

    first = _join(Markup('<th style="text-align: left">{}</th>').format(text) for text in heads)
    return Markup("<p><strong>{}</strong></p><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        head, first, _join(map(lay, rows))
    )


def render_study(spec: StudySpec) -> str:
    """A study before it runs: its question, what it trains, its keys, and the known pitfalls."""
    keys = (((key, ""), (value, "")) for key, value in format_keys(spec))
    advice = ((f"{each.key}: {each.statement}", each.remedy) for each in find_pitfalls(spec))
    title = f"Study {spec.name}: {describe_cost(spec)}"
    return _show(title, spec.question, _table("", ("Key", "Value"), keys), _list("Advice", advice))


def render_frames(frames: Frames) -> str:
    """Records: which frames there are, and how the trials ended."""
    names = ", ".join(frames.studies["study"].tolist()) or "none"
    counts = Counter(map(str, read_text(frames.trials, "outcome")))
    outcomes = ", ".join(f"{count:,} {OUTCOME_NAMES.get(name, name)}" for name, count in counts.most_common())
    return _show(f"Records of {names}", f"Trials: {outcomes or 'none'}", _list("Frames", _list_frames(frames)))


def _list_frames(frames: Frames) -> Iterator[Cell]:
    for part in FRAME_PARTS:
        frame = getattr(frames, part.field)
        if frame is None:
            yield part.field, f"not loaded; load_frames(..., {part.field}=True)"
        else:
            yield part.field, f"{format_count(len(frame), 'row')}, {format_count(frame.shape[1], 'column')}"


def render_answer(answer: Answer) -> str:
    """The answer as ``sweep recommend`` prints it: statements, tuned batch sizes, uses, other facts and notes."""
    parts = []
    if answer.batch_size is not None:
        texts = describe_batch_answer(answer.batch_size, answer.quality)
        command = [("Next step:", texts.command)] if texts.command else []
        remarks = [(line, "") for line in (*texts.models, *texts.remarks)]
        parts += [
            _list("Batch size", [*texts.statements, *command]),
            _table("The configuration for each batch size", head_curve(answer.quality), texts.rows),
            _list("", remarks),
        ]
    if answer.no_complete_trial:
        parts.append(_list("", [(answer.no_complete_trial, "")]))
    named = [item for item in answer.uses.values() if item.number is not None]
    metrics = list(dict.fromkeys(name for item in named for name in item.values))
    heads = ("Use", "Configuration", *(metric_label(name, answer.quality) for name in metrics), "Probability")
    parts.append(_table("Uses", heads, [_use_row(item, metrics, answer.quality) for item in answer.uses.values()]))
    facts = (
        (
            (fact.statement, f"{fact.detail}; n = {fact.n}" if fact.detail else ""),
            (
                format_effect(fact.unit, fact.value),
                f"not enough data; to get it: {fact.missing}" if fact.missing else "",
            ),
        )
        for fact in answer.facts.values()
    )
    parts += [_table("Other facts", ("Fact", "Value"), facts), _list("Notes", [(note, "") for note in answer.notes])]
    return _show(f"Answer of study {answer.study}", answer.validation.statement, *parts)


def _use_row(item: Recommendation, metrics: list[str], quality: Quality) -> tuple[Cell, ...]:
    title = (name_use(item.use, quality), explain_use(item.use, quality))
    if item.number is None:
        lack = (
            f"not enough data; to get it: {item.missing}"
            if item.missing
            else "no configuration that was tried is eligible"
        )
        return title, (lack, ""), *((("", ""),) * (len(metrics) + 1))
    settings = ", ".join(describe_use_setting(item, key) for key in item.settings if key != "batch.global")
    known, nothing = item.values, ("–", "")
    values = (format_estimate(name, *known[name], quality) if name in known else nothing for name in metrics)
    sure = (format_probability(item.probability), "settled" if item.is_settled else "not settled")
    where = f"trial {item.number}, effective batch size {item.global_batch_size}{describe_use_price(item)}"
    return title, (settings, where), *values, sure


@final
class FigureSet(dict[str, Figure]):
    """The figures of a report by name, as data; a notebook draws the one that a cell returns. ``absent`` are those that
    the records cannot fill, each with what to record."""

    def __init__(self, figures: Iterable[Figure], absent: Iterable[Absent]) -> None:
        super().__init__((figure.name, figure) for figure in figures)
        self.absent = tuple(absent)

    def __missing__(self, name: str) -> Never:
        raise InputError(f"{describe_unknown('figure', name, self)} Absent ones are in .absent.")

    def __repr__(self) -> str:
        return f"FigureSet({', '.join(self)})"

    def _repr_html_(self) -> str:
        rows = (((name, ""), (figure.title, figure.finding)) for name, figure in self.items())
        absent = ((f"{each.title}: {each.remedy}", "") for each in self.absent)
        figures = _table("", ("Name", "Figure"), rows)
        return _show(format_count(len(self), "figure"), "", figures, _list("Not in these records", absent))


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
    return FigureSet([*first, *made.figures], made.absent)
