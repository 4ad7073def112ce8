"""Reservations about the records, as sentences."""

from collections.abc import Callable

from reports import data_texts
from reports.evidence import Evidence, keep_finite
from reports.labels import OUTCOME_NAMES
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.config.units import format_count
from sweep.records.messages import INFEASIBLE

FEW_TRIALS = 10
MUCH = 0.3


def find_reservations(evidence: Evidence) -> list[str]:
    """A sentence for each reservation that the records give reason for."""
    data = evidence.frames.data
    notes = data_texts.list_notes(data) if data else []
    return [*(sentence for check in _CHECKS if (sentence := check(evidence))), *(f"Data: {note}." for note in notes)]


def _running(evidence: Evidence) -> str:
    num_open = evidence.count_outcomes().get("", 0)
    if not num_open:
        return ""
    return f"{format_count(num_open, 'trial')} had not ended when this page was written."


def _few_trials(evidence: Evidence) -> str:
    done = len(evidence.search)
    if done >= FEW_TRIALS:
        return ""
    return f"Only {format_count(done, 'search trial')} completed: the front may still change much. Run more trials."


def _one_seed(evidence: Evidence) -> str:
    if not len(evidence.configurations):
        return ""
    if not evidence.num_confirmed:
        return (
            "Nothing is confirmed: every value is from one seed, and the best of many noisy trials is biased "
            "upward. Finish the study, or raise confirm."
        )
    front = evidence.configurations["on_search_front"].to_numpy(dtype=bool)
    alone = int((front & ~evidence.configurations["confirmed"].to_numpy(dtype=bool)).sum())
    if not alone:
        return ""
    return f"On the search front, {format_count(alone, 'configuration')} with one seed only: values may be optimistic."


def _failed_seeds(evidence: Evidence) -> str:
    frame = evidence.configurations
    failed = frame[frame["num_failed_seeds"].to_numpy() > 0]
    if not len(failed):
        return ""
    numbers = ", ".join(str(number) for number in failed["number"].head(5))
    return (
        f"Confirming seeds did not complete for {format_count(len(failed), 'configuration')} (of trial {numbers}): "
        "its estimate is by the others only."
    )


def _devices(evidence: Evidence) -> str:
    used = sorted(set(read_text(evidence.trials, "device")) - {""})
    if len(used) < 2:
        return ""
    return f"Trials ran on different devices ({'; '.join(used[:5])}): their times and memory are not comparable."


def _environments(evidence: Evidence) -> str:
    used = set(read_text(evidence.trials, "environment_digest")) - {""}
    if len(used) < 2:
        return ""
    return f"Trials ran in {len(used)} environments (versions or settings differ); see the table at the end."


def _crashed(evidence: Evidence) -> str:
    crashed = evidence.trials[(evidence.trials["outcome"] == "crashed").to_numpy(dtype=bool)]
    if not len(crashed):
        return ""
    errors = [line for line in read_text(crashed, "error") if line]
    last = f" The last error: {str(errors[-1]).strip().splitlines()[-1][:300]}" if errors else ""
    return f"{format_count(len(crashed), 'trial')} crashed, which does not reflect on the configuration.{last}"


def _infeasible(evidence: Evidence) -> str:
    counts = {name: count for name, count in evidence.count_outcomes().items() if name in INFEASIBLE}
    ended = len(evidence.trials) - evidence.count_outcomes().get("", 0)
    if not ended or sum(counts.values()) < MUCH * ended:
        return ""
    parts = ", ".join(f"{count} {OUTCOME_NAMES[name]}" for name, count in counts.items())
    return f"{sum(counts.values()) / ended:.0%} of the trials were infeasible ({parts}): narrow the space."


def _test_split(evidence: Evidence) -> str:
    frame = evidence.configurations
    if not len(frame) or len(keep_finite(read_numbers(frame, "test_accuracy"))):
        return ""
    return "The test split was not used: accuracies are of the validation split, by which the front was selected."


_CHECKS: tuple[Callable[[Evidence], str], ...] = (
    _running, _few_trials, _one_seed, _failed_seeds, _devices, _environments, _crashed, _infeasible, _test_split
)  # fmt: skip
