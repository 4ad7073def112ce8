"""The recommendations and additional measurements as texts, without any markup, and the claims."""

from dataclasses import dataclass

from reports.batch_texts import BatchTexts, describe_batch_answer
from reports.describe import train_commands
from reports.evidence import Evidence
from reports.labels import (
    format_difference,
    format_estimate,
    format_interval,
    format_probability,
    format_setting,
    format_value,
    key_label,
    metric_label,
)
from reports.page.claims_table import ClaimRow, list_claims
from sweep.analysis.answer import USE_MEANINGS, Fact, NextBest, Recommendation
from sweep.analysis.answer.method import METHOD
from sweep.analysis.statistics import Interval, read_numbers
from sweep.config.metrics import METRICS

USE_TITLES = {
    "accuracy": "Best accuracy",
    "speed": "Fastest",
    "memory": "Lowest memory",
    "balanced": "Balanced",
    "fine_tune": "Fine-tuning",
    "distributed": "On several devices",
}
NEGLIGIBLE = 1e-3
_REGRET = "Expected regret (how much the truly best configuration is better, on average)"


@dataclass(frozen=True, kw_only=True)
class Card:
    """The recommendation for one use; ``trial`` is None without enough data. ``measured`` are values that are not
    estimates, each with its label and a note; ``missing`` is the command that provides the missing data or increases
    confidence."""

    title: str
    meaning: str
    trial: int | None
    measured: tuple[tuple[str, str, str], ...]
    sure: str  # in short
    confidence: str
    comparison: str
    evidence: tuple[str, ...]
    command: str
    missing: str


@dataclass(frozen=True, kw_only=True)
class FactRow:
    """A further measurement; ``settle`` is the command that would provide it."""

    statement: str
    effect: str
    interval: str
    n: int
    detail: str
    settle: str


@dataclass(frozen=True, kw_only=True)
class AnswerTexts:
    """All of it; ``batch`` is the answer about the batch size, None without a complete trial; ``cards`` are those that
    are answered, ``open`` the others; ``tested`` claims that the records can test, ``untested`` the others; ``images``
    names the validation images and what intervals cover, ``method`` has how numbers are computed."""

    cards: tuple[Card, ...]
    open: tuple[Card, ...]
    facts: tuple[FactRow, ...]
    tested: tuple[ClaimRow, ...]
    untested: tuple[ClaimRow, ...]
    batch: BatchTexts | None
    images: str
    method: tuple[tuple[str, str], ...]


def describe_answers(evidence: Evidence) -> AnswerTexts:
    """The recommendations and claims of :mod:`sweep.analysis` as texts."""
    answer = evidence.answer
    cards = [_card(evidence, item) for item in answer.uses.values()]
    claims = list_claims(evidence.claims)
    return AnswerTexts(
        cards=tuple(card for card in cards if card.trial is not None),
        open=tuple(card for card in cards if card.trial is None),
        facts=tuple(map(_row, answer.facts.values())),
        tested=tuple(row for row in claims if not row.reason),
        untested=tuple(row for row in claims if row.reason),
        batch=describe_batch_answer(answer.batch_size) if answer.batch_size else None,
        images=answer.validation.statement,
        method=METHOD,
    )


def _card(evidence: Evidence, item: Recommendation) -> Card:
    return Card(
        title=USE_TITLES[item.use],
        meaning=USE_MEANINGS[item.use],
        trial=item.number,
        measured=tuple(_value(name, value) for name, value in item.measured.items()),
        sure=f"{format_probability(item.probability)}, {'settled' if item.is_settled else 'not settled'}",
        confidence=_describe_confidence(item) if item.number is not None else "",
        comparison=_compare_next(item.next_best) if item.next_best else "",
        evidence=tuple(f"{line[:1].upper()}{line[1:]}." for line in item.evidence),
        command=_train_command(evidence, item.number) if item.number is not None else "",
        missing=item.missing or "",
    )


def _train_command(evidence: Evidence, number: int) -> str:
    row = evidence.trials[(read_numbers(evidence.trials, "number") == number)].head(1)
    return train_commands(row, evidence.frames)[0]


def _value(name: str, value: Interval) -> tuple[str, str, str]:
    shown, interval = format_estimate(name, *value)
    return metric_label(name), shown, f"{interval}, n = {value.n}" if interval else f"n = {value.n}"


def _describe_confidence(item: Recommendation) -> str:
    state = "settled" if item.is_settled else "not settled"
    sure = (
        f"The probability that nothing tried is better by more than the tolerance is "
        f"{format_probability(item.probability)} ({state}); that of being on the Pareto front is "
        f"{format_probability(item.on_front)}"
    )
    if item.regret_metric not in item.values:
        return f"{sure}."
    if item.regret < NEGLIGIBLE * item.values[item.regret_metric].median:
        return f"{sure}. {_REGRET} is negligible."
    return f"{sure}. {_REGRET}: {_format_regret(item)}."


def _format_regret(item: Recommendation) -> str:
    unit = METRICS[item.regret_metric].unit
    return format_value("fraction difference" if unit == "fraction" else unit, item.regret)


def _compare_next(following: NextBest) -> str:
    changes = [f"{key_label(key)} {format_setting(value)}" for key, value in following.changes.items()]
    parts = [
        f"{metric_label(name).lower()} {format_difference(following.units[name], *value)}"
        for name, value in following.differences.items()
    ]
    others = f" ({', '.join(changes)})" if changes else ""
    return f"Compared with the next best, trial {following.number}{others}: {'; '.join(parts)}."


def _row(fact: Fact) -> FactRow:
    return FactRow(
        statement=fact.statement,
        effect=format_value(fact.unit, fact.value),
        interval=format_interval(fact.unit, fact.low, fact.high, fact.value),
        n=fact.n,
        detail=fact.detail,
        settle=fact.missing or "",
    )
