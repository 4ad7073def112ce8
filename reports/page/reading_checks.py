"""Reservations about the records, as sentences, each with what to do about it or what it affects."""

import re
from collections.abc import Callable

from reports import data_texts
from reports.evidence import Evidence, keep_finite
from reports.labels import OUTCOME_NAMES
from sweep.analysis.shortfalls import explain_confirmation
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.units import format_count
from sweep.records.messages import INFEASIBLE

FEW_TRIALS = 10
MUCH = 0.3
_COMMAND = re.compile(r"(?<=\s)sweep (?:run|doctor) \S.*\Z")


def find_reservations(evidence: Evidence) -> list[str]:
    """A sentence for each reservation that the records give reason for, and the notes of the answer; the most serious
    first."""
    data = evidence.frames.data
    about_data = [f"Data: {note}." for note in data_texts.list_notes(data)] if data else []
    serious, others = ([text for check in checks if (text := check(evidence))] for checks in (_SERIOUS, _OTHERS))
    return [*serious, *about_data, *evidence.answer.notes, *others]


def split_command(sentence: str) -> tuple[str, str]:
    """The ``sentence`` without the command at its end, and that command, "" without one."""
    found = _COMMAND.search(sentence)
    return (sentence[: found.start()].rstrip(), found[0]) if found else (sentence, "")


def _running(evidence: Evidence) -> str:
    num_open = evidence.count_outcomes().get("", 0)
    if not num_open:
        return ""
    return (
        f"{format_count(num_open, 'trial')} had no result when this page was written: running, or interrupted and then "
        "continued by the next sweep run. Write the page again by sweep report after it."
    )


def _few_trials(evidence: Evidence) -> str:
    done = len(evidence.search) or evidence.num_confirmed
    if done >= FEW_TRIALS or evidence.answer.no_complete_trial:
        return ""
    completed = format_count(done, "search trial" if len(evidence.search) else "configuration")
    return f"Only {completed} completed, so the front may still change considerably: run more trials."


def _nothing_confirmed(evidence: Evidence) -> str:
    if not len(evidence.configurations) or evidence.num_confirmed:
        return ""
    text = "Nothing is confirmed: every value is from one seed, and the best of many noisy trials is biased upward."
    if evidence.frames.source is not None:
        return f"{text} No configuration has runs with several seeds that can be told apart."
    remedy = "Finish the study, or raise confirm.share, so that it trains its best configurations again."
    return text if explain_confirmation(evidence.frames) else f"{text} {remedy}"


def _one_seed(evidence: Evidence) -> str:
    if not evidence.num_confirmed:
        return ""
    front = evidence.configurations["on_search_front"].to_numpy(dtype=bool)
    alone = int((front & ~evidence.configurations["confirmed"].to_numpy(dtype=bool)).sum())
    if not alone:
        return ""
    has = f"{format_count(alone, 'configuration')} on the front of the search {'has' if alone == 1 else 'have'}"
    return f"{has} one seed only: the measured values may be optimistic until fresh seeds confirm them."


def _failed_seeds(evidence: Evidence) -> str:
    frame = evidence.configurations
    failed = frame[frame["num_failed_seeds"].to_numpy() > 0]
    if not len(failed):
        return ""
    numbers = ", ".join(str(number) for number in failed["number"].head(5))
    return (
        f"Confirming seeds did not complete for {format_count(len(failed), 'configuration')} (of trial {numbers}): "
        "the estimates rest on the seeds that did. The table of trials has the outcomes."
    )


def _devices(evidence: Evidence) -> str:
    used = sorted(set(read_text(evidence.trials, "device")) - {""})
    if len(used) < 2:
        return ""
    return (
        f"Trials ran on different devices ({'; '.join(used[:5])}): their times and memory are not comparable, and the "
        "recommendations use those of the most common device only."
    )


def _environments(evidence: Evidence) -> str:
    used = set(read_text(evidence.trials, "environment_digest")) - {""}
    if len(used) < 2:
        return ""
    return (
        f"Trials ran in {len(used)} environments (versions or settings differ), which can change times and accuracies: "
        "compare them in the table at the end."
    )


def _crashed(evidence: Evidence) -> str:
    crashed = evidence.trials[(evidence.trials["outcome"] == "crashed").to_numpy(dtype=bool)]
    if not len(crashed):
        return ""
    errors = [line for line in read_text(crashed, "error") if line]
    last = f" The last error: {str(errors[-1]).strip().splitlines()[-1][:300]}" if errors else ""
    return (
        f"{format_count(len(crashed), 'trial')} crashed, which says nothing about the configuration: repair the cause "
        f"and run the study again.{last}"
    )


def _infeasible(evidence: Evidence) -> str:
    counts = {name: count for name, count in evidence.count_outcomes().items() if name in INFEASIBLE}
    ended = len(evidence.trials) - evidence.count_outcomes().get("", 0)
    if not ended or sum(counts.values()) < MUCH * ended:
        return ""
    if evidence.answer.no_complete_trial:
        return evidence.answer.no_complete_trial
    parts = ", ".join(f"{count} {OUTCOME_NAMES[name]}" for name, count in counts.items())
    share = f"{100 * sum(counts.values()) / ended:.0f} %"
    return f"{share} of the trials gave no result ({parts}): narrow the search space to avoid this."


def _test_split(evidence: Evidence) -> str:
    frame = evidence.configurations
    if not len(frame) or len(keep_finite(read_numbers(frame, "test_accuracy"))):
        return ""
    return (
        "The test split was not used: accuracies are those of the validation split, by which the front was selected. "
        "Confirming trials measure the test accuracy."
    )


_SERIOUS: tuple[Callable[[Evidence], str], ...] = (_nothing_confirmed, _devices, _crashed, _infeasible, _failed_seeds)
_OTHERS: tuple[Callable[[Evidence], str], ...] = (_one_seed, _running, _few_trials, _environments, _test_split)
