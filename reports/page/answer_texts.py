"""The answer, the facts beside it and the findings as texts, without any markup."""

from dataclasses import dataclass

import numpy as np

from reports.evidence import Evidence
from reports.labels import (
    format_difference,
    format_interval,
    format_metric,
    format_setting,
    format_value,
    key_label,
    metric_label,
)
from sweep.analysis.answer.answer import USE_MEANINGS, Fact, NextBest, Recommendation
from sweep.analysis.answer.recommend import recommend
from sweep.analysis.claims.findings import Finding, evaluate_claims
from sweep.analysis.statistics.frame_columns import read_numbers
from sweep.analysis.statistics.intervals import Interval
from sweep.config.command_lines import train_command
from sweep.config.metrics import METRICS

_TITLES = {
    "accuracy": "For accuracy",
    "speed": "For speed",
    "memory": "For little memory",
    "balanced": "A balance of all",
    "fine_tune": "For fine-tuning",
    "distributed": "On several devices",
}
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class Value:
    """A measured value of a card."""

    label: str
    text: str
    note: str


@dataclass(frozen=True)
class Card:
    """What to take for one use; ``trial`` is None where the records do not tell. ``missing`` says what to run to know,
    or to be surer."""

    title: str
    meaning: str
    trial: int | None
    settings: tuple[tuple[str, str], ...]
    values: tuple[Value, ...]
    sure: str
    given_up: str
    evidence: tuple[str, ...]
    command: str
    missing: str


@dataclass(frozen=True)
class Line:
    """A row of the facts or of the findings."""

    statement: str
    effect: str
    interval: str
    n: int
    verdict: str
    detail: str
    published: str
    settle: str


@dataclass(frozen=True)
class Answers:
    """All of it; ``cards`` are those that are answered, ``open`` the others; ``tested`` claims that the records say
    something about, ``untested`` the others."""

    cards: tuple[Card, ...]
    open: tuple[Card, ...]
    facts: tuple[Line, ...]
    tested: tuple[Line, ...]
    untested: tuple[Line, ...]
    notes: tuple[str, ...]
    method: str


def answers(evidence: Evidence) -> Answers:
    """What the records say, worked out by :mod:`sweep.analysis`."""
    answer = recommend(evidence)
    cards = [_card(evidence, item) for item in answer.uses.values()]
    claims = [_finding(item) for item in evaluate_claims(evidence)]
    return Answers(
        tuple(card for card in cards if card.trial is not None),
        tuple(card for card in cards if card.trial is None),
        tuple(_fact(fact) for fact in answer.facts.values()),
        tuple(line for line in claims if line.n),
        tuple(line for line in claims if not line.n),
        answer.notes,
        answer.method,
    )


def _card(evidence: Evidence, item: Recommendation) -> Card:
    settings = [(key_label(key).capitalize(), format_setting(item.config.get(key))) for key in item.settings]
    if item.global_batch_size is not None:
        settings.append(("Global batch", str(item.global_batch_size)))
    return Card(
        _TITLES[item.use],
        USE_MEANINGS[item.use],
        item.number,
        tuple(settings),
        tuple(_value(name, value) for name, value in item.values.items()),
        _sure(item) if item.number is not None else "",
        _given_up(item.next_best) if item.next_best else "",
        item.evidence,
        train_command(item.config, _seed(evidence, item.number)) if item.number is not None else "",
        item.missing or "",
    )


def _seed(evidence: Evidence, number: int) -> int:
    rows = np.flatnonzero(read_numbers(evidence.trials, "number") == number)
    return int(read_numbers(evidence.trials, "seed")[rows[0]])


def _value(name: str, value: Interval) -> Value:
    interval = format_interval(METRICS[name].unit, value.low, value.high, value.median)
    note = f"{interval}, n = {value.n}" if interval else f"n = {value.n}"
    return Value(metric_label(name), format_metric(name, value.median), note)


def _sure(item: Recommendation) -> str:
    basis = "confirmed with fresh seeds" if item.is_confirmed else "from one seed, not confirmed"
    sure = (
        f"{item.certainty:.0%} sure that nothing tried is better; {item.on_front:.0%} that it is on the front; {basis}"
    )
    if item.regret_metric not in item.values:
        return f"{sure}."
    if item.regret < NEGLIGIBLE * item.values[item.regret_metric].median:
        return f"{sure}. Against the truly best nothing to speak of is lost."
    return f"{sure}. Expected loss against the truly best: {format_metric(item.regret_metric, item.regret)}."


def _given_up(following: NextBest) -> str:
    changes = [f"{key_label(key)} {format_setting(value)}" for key, value in following.changes.items()]
    parts = [
        f"{metric_label(name).lower()} {format_difference(following.units[name], *value[:3])}"
        for name, value in following.differences.items()
    ]
    others = f" ({', '.join(changes)})" if changes else ""
    return f"Against the next best, trial {following.number}{others}: {'; '.join(parts)}."


def _fact(fact: Fact) -> Line:
    effect = format_value(fact.unit, fact.value)
    interval = format_interval(fact.unit, fact.low, fact.high, fact.value)
    return Line(fact.statement, effect, interval, fact.n, "", fact.detail, "", fact.missing or "")


def _finding(item: Finding) -> Line:
    effect = format_value(item.unit, item.effect)
    interval = format_interval(item.unit, item.low, item.high, item.effect)
    return Line(item.statement, effect, interval, item.n, item.verdict, item.detail, item.published, item.settle)
