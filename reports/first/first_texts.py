"""The answer as one sentence, how sure it is, and what is known of its accuracy, time and memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from reports.batch_texts import describe_certainty
from reports.evidence import Evidence
from reports.first.provenance import describe_provenance
from reports.labels import format_estimate, format_price, format_probability, metric_label
from sweep.analysis.answer import BatchAnswer, Recommendation, TunedBatch
from sweep.analysis.answer.choice_texts import describe_use
from sweep.analysis.statistics import read_text
from sweep.config.study_sections import FEWEST_SEEDS
from sweep.config.units import format_count, format_share
from sweep.records.quality_flags import (
    MAX_TIME_ERROR,
    MAX_WAIT_SLOWDOWN,
    PACKED,
    SLOWED_BY_OTHERS,
    UNCERTAIN_TIME,
    find_time_doubts,
)

_METRICS = ("val_accuracy", "train_seconds", "peak_memory_bytes")
_REASONS = {
    UNCERTAIN_TIME: f"the mean step time is known to no better than ±{format_share(MAX_TIME_ERROR)}",
    SLOWED_BY_OTHERS: f"other programs slowed the training by over {format_share(MAX_WAIT_SLOWDOWN)}",
    PACKED: "trials shared the device",
}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One metric of the recommended configuration: ``value`` with its ``interval``, how ``sure`` it is, and the
    ``doubt`` in words, "" without one."""

    label: str
    value: str
    interval: str
    sure: str
    doubt: str


@dataclass(frozen=True, kw_only=True)
class FirstTexts:
    """``headline`` is the answer, ``comparison`` what a neighboring batch size costs, ``certainty`` how sure the answer
    is; ``command`` is what would settle it or make it possible, "" where it is settled."""

    provenance: tuple[str, ...]
    headline: str
    comparison: str
    certainty: str
    command: str
    chips: tuple[Chip, ...]

    @property
    def finding(self) -> str:
        """The headline with the comparison."""
        return " ".join(filter(None, (self.headline, self.comparison)))


def describe_first(evidence: Evidence) -> FirstTexts:
    """The texts of the first screen; numbers are those of ``evidence.answer``, printed as everywhere else."""
    provenance, found = describe_provenance(evidence), evidence.answer.batch_size
    if found is None or found.named.number is None:
        return _describe_open(evidence, provenance)
    use = found.statements[0]
    return FirstTexts(
        provenance=provenance,
        headline=f"{describe_use(found.named)}.",
        comparison=_compare_neighbor(found),
        certainty=_describe_certainty(evidence, found),
        command=use.missing or "",
        chips=(
            *(_make_chip(evidence, found, name) for name in _METRICS if name in found.named.values),
            *_make_price_chip(evidence, found.named),
        ),
    )


def _describe_open(evidence: Evidence, provenance: tuple[str, ...]) -> FirstTexts:
    answer = evidence.answer
    reason = f"no eligible configuration has {FEWEST_SEEDS} fresh seeds yet"
    if answer.batch_size is None:
        reason = "no trial is complete" if answer.no_complete_trial else "no trial has completed with an accuracy"
    commands = [answer.batch_size.named.missing] if answer.batch_size else [use.missing for use in answer.uses.values()]
    return FirstTexts(
        provenance=provenance,
        headline=f"A batch size cannot be recommended yet: {reason}.",
        comparison="",
        certainty=answer.no_complete_trial or "",
        command=next(filter(None, commands), ""),
        chips=(),
    )


def format_points(share: float) -> str:
    """0.005 as "0.5 points"."""
    shown = f"{100 * share:.2g}"
    return f"{shown} {'point' if shown == '1' else 'points'}"


def _compare_neighbor(found: BatchAnswer) -> str:
    # the smaller one, because the question is what a larger batch gives; the larger one where there is none
    texts = {each.name: each.text for each in found.statements}
    return texts.get("next_smaller") or texts.get("next_larger") or "No other batch size was tried."


def _describe_certainty(evidence: Evidence, found: BatchAnswer) -> str:
    tolerance = evidence.answer.tolerance
    text = (
        f"{found.named.global_batch_size} is the fastest, to within {format_share(tolerance.time)}, of the "
        f"configurations within {format_points(tolerance.accuracy)} of the best accuracy"
    )
    return f"{text}: {describe_certainty(found.statements[0])}."


def _make_chip(evidence: Evidence, found: BatchAnswer, name: str) -> Chip:
    value = found.named.values[name]
    shown, interval = format_estimate(name, *value)
    count = f"{'95 % interval, ' if interval else ''}{_describe_count(found.named, name)}"
    return Chip(
        label=metric_label(name),
        value=shown,
        interval=interval,
        sure="; ".join([count, *_list_grounds(evidence, found, name)]),
        doubt=_describe_doubt(evidence, found.named) if name == "train_seconds" else "",
    )


def _make_price_chip(evidence: Evidence, named: Recommendation) -> Iterator[Chip]:
    price, per_hour = named.price, evidence.answer.price_per_hour
    if price is None or per_hour is None:
        return
    yield Chip(
        label="Price of a training",
        value=format_price(price.median, price.currency),
        interval=f"{format_price(price.low, '')} to {format_price(price.high, price.currency)}",
        sure=f"the training time at {format_price(per_hour, price.currency)} an hour, without set-up and evaluations",
        doubt="",
    )


def _describe_count(named: Recommendation, name: str) -> str:
    # time and memory are pooled with trainings of other learning rates, unreliable times are left out
    count, seeds = named.values[name].n, named.values["val_accuracy"].n
    which = "with fresh seeds" if count == seeds else "of equal cost" if count > seeds else "with a reliable value"
    return f"n = {format_count(count, 'training')} {which}"


def _list_grounds(evidence: Evidence, found: BatchAnswer, name: str) -> Iterator[str]:
    if name == "val_accuracy":
        point = next((each for each in found.curve if _is_named(each, found)), None)
        if point is not None:
            yield (
                f"{format_probability(point.p_without_loss)} probability that tuned training at this batch size loses "
                f"at most {format_points(evidence.answer.tolerance.accuracy)} against the best batch size"
            )
        per_image = evidence.answer.validation.accuracy_per_image
        if per_image:
            yield f"one validation image is {format_points(per_image)}"


def _is_named(point: TunedBatch, found: BatchAnswer) -> bool:
    return (point.model, point.batch) == (found.model, found.named.global_batch_size)


def _describe_doubt(evidence: Evidence, named: Recommendation) -> str:
    """Why times of the recommended configuration's trials cannot be used for certain; "" where all can."""
    trials = evidence.trials
    family = trials.loc[trials["number"] == named.number, "family"].to_numpy()[0]
    own = trials[(trials["family"] == family) & (trials["outcome"] == "complete")]
    doubtful = own[read_text(own, "time_source") == ""]
    if doubtful.empty:
        return ""
    doubts = [find_time_doubts(str(text).split(",")) for text in read_text(doubtful, "quality_flags")]
    reasons = ", ".join(dict.fromkeys(_REASONS.get(flag, flag) for each in doubts for flag in sorted(each)))
    return f"Doubtful: the times of {len(doubtful)} of {format_count(len(own), 'training')} are unreliable ({reasons})."
