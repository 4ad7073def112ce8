"""Which objectives of a study its trials can measure, by the study's settings and the devices of its executor."""

from collections.abc import Iterable
from functools import cache, partial

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS, Requirement, list_objectives
from sweep.config.study import StudySpec
from sweep.config.trial_config import flatten_config
from sweep.executors.table import ExecutorSettings, device_type, read_sensors


def check_objectives(spec: StudySpec, settings: ExecutorSettings) -> None:
    """Checks that trials of ``spec`` can measure each of its objectives on the devices of ``settings``.

    Raises:
        InputError: one cannot be measured; the message has what it requires, and what can be measured instead.
    """
    if lacking := find_unmeasurable(spec, settings):
        device = "a GPU" if device_type(settings) == "cuda" else "the CPU"
        reasons = "; ".join(f"{name} requires {each.text}" for name, each in lacking.items())
        raise InputError(
            f"objectives: {', '.join(lacking)} cannot be measured by this study on {device} here: {reasons}; "
            f"{suggest_remedy(lacking.values())}, or choose from {', '.join(list_measurable(spec, settings))}."
        )


def suggest_remedy(lacking: Iterable[Requirement]) -> str:
    """What to do so that the metrics that require ``lacking`` are measured."""
    texts = dict.fromkeys(f"set {each.text} in [base]" if each.key else f"train on {each.text}" for each in lacking)
    return " and ".join(texts)


def find_unmeasurable(spec: StudySpec, settings: ExecutorSettings) -> dict[str, Requirement]:
    """The objectives that trials of ``spec`` cannot measure, each with what it requires."""
    return _find_lacking(spec.objectives, spec, settings)


def list_measurable(spec: StudySpec, settings: ExecutorSettings) -> list[str]:
    """Every metric that could be an objective of ``spec`` on the devices of ``settings``."""
    lacking = _find_lacking(list_objectives(), spec, settings)
    return [name for name in list_objectives() if name not in lacking]


def _find_lacking(names: Iterable[str], spec: StudySpec, settings: ExecutorSettings) -> dict[str, Requirement]:
    sensors = cache(partial(read_sensors, settings))  # a GPU is asked only where an objective depends on it
    required = {name: each for name in names if (each := METRICS[name].requires)}
    return {
        name: each
        for name, each in required.items()
        if not (each.sensor in sensors() if each.sensor else _is_set(each, spec))
    }


def _is_set(requirement: Requirement, spec: StudySpec) -> bool:
    # in every trial: keys that are swept may replace the required one
    section = requirement.key.partition(".")[0]
    found = {flatten_config(config)[requirement.key] for config in spec.corners.of(section)}
    return None not in found if requirement.value is None else found == {requirement.value}
