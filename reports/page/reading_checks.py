"""What a reader must know before believing a report, as sentences."""

from collections.abc import Callable

from reports.evidence import Evidence, known
from reports.labels import OUTCOME_NAMES, plural
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.records.messages import INFEASIBLE

FEW_TRIALS = 10
MUCH = 0.3


def warnings(evidence: Evidence) -> list[str]:
    """Every doubt that the records themselves raise; nothing where there is none."""
    return [sentence for check in _CHECKS if (sentence := check(evidence))]


def _running(evidence: Evidence) -> str:
    num_open = evidence.outcomes().get("", 0)
    if not num_open:
        return ""
    return f"{plural(num_open, 'trial')} had not ended when this page was written: the study may still be running."


def _few_trials(evidence: Evidence) -> str:
    done = len(evidence.search)
    if done >= FEW_TRIALS:
        return ""
    return f"Only {plural(done, 'search trial')} completed: the front can still move a lot. More trials are the remedy."


def _one_seed(evidence: Evidence) -> str:
    if not len(evidence.configurations):
        return ""
    if not evidence.num_confirmed:
        return (
            "Nothing is confirmed: every value is from one seed, and the best of many noisy trials looks better than "
            "it is. Finish the study, or raise confirm."
        )
    front = evidence.configurations["on_search_front"].to_numpy(dtype=bool)
    alone = int((front & ~evidence.configurations["confirmed"].to_numpy(dtype=bool)).sum())
    if not alone:
        return ""
    return f"On the search front, {plural(alone, 'configuration')} with one seed only: their values may flatter them."


def _failed_seeds(evidence: Evidence) -> str:
    frame = evidence.configurations
    failed = frame[frame["num_failed_seeds"].to_numpy() > 0]
    if not len(failed):
        return ""
    numbers = ", ".join(str(number) for number in failed["number"].head(5))
    return (
        f"Confirming seeds did not complete for {plural(len(failed), 'configuration')} (of trial {numbers}): "
        "its median is over the others only."
    )


def _devices(evidence: Evidence) -> str:
    used = sorted(set(read_text(evidence.trials, "device")) - {""})
    if len(used) < 2:
        return ""
    return f"Trials ran on different devices ({'; '.join(used[:5])}): their times and memory do not compare."


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
    said = f" The last said: {str(errors[-1]).strip().splitlines()[-1][:300]}" if errors else ""
    return f"{plural(len(crashed), 'trial')} crashed, which says nothing about the configuration.{said}"


def _infeasible(evidence: Evidence) -> str:
    counts = {name: count for name, count in evidence.outcomes().items() if name in INFEASIBLE}
    ended = len(evidence.trials) - evidence.outcomes().get("", 0)
    if not ended or sum(counts.values()) < MUCH * ended:
        return ""
    parts = ", ".join(f"{count} {OUTCOME_NAMES[name]}" for name, count in counts.items())
    return f"{sum(counts.values()) / ended:.0%} of the trials could not complete ({parts}): narrow the space."


def _test_split(evidence: Evidence) -> str:
    frame = evidence.configurations
    if not len(frame) or len(known(read_numbers(frame, "test_accuracy"))):
        return ""
    return "The test split was not read: accuracies are of the validation split, by which the front was chosen."


_CHECKS: tuple[Callable[[Evidence], str], ...] = (
    _running, _few_trials, _one_seed, _failed_seeds, _devices, _environments, _crashed, _infeasible, _test_split
)  # fmt: skip
