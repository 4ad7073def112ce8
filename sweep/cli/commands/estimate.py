"""``sweep estimate``: the peak memory of a configuration, or of the corners of a study, without training."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reports.labels import format_value
from sweep.cli.arguments import load_plugin, parse_sets
from sweep.cli.options import AsJson, Plugin, Sets
from sweep.cli.output import print_lines, print_table
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.config.trial_config import Scalar, TrialConfig, build_config, replace_keys
from sweep.records.probe_record import MEMORY_LABELS

if TYPE_CHECKING:
    from sweep.config.tables.datasets import DataFacts
    from sweep.probing.estimate import MemoryEstimate

_MAX_CORNERS = 64  # as many as a study's own check looks at
_MAX_SIZES = 16  # micro batches shown one by one
_MICRO = "batch.micro"
_DEVICE_TYPES = ("auto", "cpu", "cuda")


class Case(NamedTuple):
    """A configuration's estimate; ``name`` is its role in the study, ``values`` are its swept keys, ``facts`` those of
    its data."""

    name: str
    values: dict[str, Any]
    config: TrialConfig
    facts: "DataFacts"
    estimate: "MemoryEstimate"


def estimate(
    study: Annotated[str | None, typer.Argument(help="Estimate the base and the extremes of this study.")] = None,
    sets: Sets = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; it need not exist on this machine.")] = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Forecast peak memory by category, without training. Needs no GPU."""
    from sweep.training.data.table import find_facts

    load_plugin(plugin)
    changes, device_type = parse_sets(sets or []), _device_type(device)
    if study is None:
        config = build_config(replace_keys({}, changes), "--set")
        base = _case("configuration", {}, config, device_type, find_facts(config.data))
        space: list[Case] = []
    else:
        base, space = _study_cases(load_study(study, changes), device_type)
    step = _measure_step(base, device_type)
    if as_json:
        typer.echo(json.dumps(_figures(base.estimate) | step | {"space": [_point(case) for case in space]}))
    else:
        _print(base, step, space)
    return 0


def _device_type(name: str) -> str:
    if name not in _DEVICE_TYPES:
        raise InputError(f"--device {name}: choose one of {', '.join(_DEVICE_TYPES)}.")
    if name != "auto":
        return name
    from sweep.measurement.device import resolve_device

    return resolve_device(name).type


def _study_cases(spec: StudySpec, device_type: str) -> tuple[Case, list[Case]]:
    """The base, and of the space each micro batch and the corners that need least and most."""
    from sweep.training.data.table import find_facts

    facts_of = cache(find_facts)  # once for all cases, because a folder of many images is read for it

    def case(name: str, values: dict[str, Any]) -> Case:
        config = spec.config(values)
        return _case(name, values, config, device_type, facts_of(config.data))

    micro = spec.space.get(_MICRO)
    sizes = [{_MICRO: size} for size in _few(micro)] if micro else []
    cases = [case("micro batch", values) for values in sizes]
    corners = [case("corner", corner) for corner in islice(spec.corners.points(), _MAX_CORNERS)] if spec.space else []
    corners.sort(key=lambda each: each.estimate.peak_memory_bytes)
    if corners:
        cases += [corners[0]._replace(name="smallest corner"), corners[-1]._replace(name="largest corner")]
    return case("base", {}), cases


def _few(parameter: Parameter) -> Sequence[Scalar]:
    values = parameter.grid_values
    return values if values and len(values) <= _MAX_SIZES else parameter.extremes()


def _case(name: str, values: dict[str, Any], config: TrialConfig, device_type: str, facts: "DataFacts") -> Case:
    from sweep.probing.estimate import estimate_memory

    return Case(name, values, config, facts, estimate_memory(config, device_type=device_type, facts=facts))


def _figures(estimate: "MemoryEstimate") -> dict[str, int]:
    return {"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)}


def _point(case: Case) -> dict[str, Any]:
    steps = {"steps_per_epoch": _count_steps(case)}
    return {"name": case.name, "config": case.values, **_figures(case.estimate), **steps}


def _count_steps(case: Case) -> int:
    from sweep.search.forecast.workload import count_epoch_steps

    return count_epoch_steps(case.config, case.facts.num_train)


def _print(base: Case, step: dict[str, Any], space: list[Case]) -> None:
    print_lines([f"{base.name}:"])
    parts = [*_part_rows(base.estimate), ("together", base.estimate.peak_memory_bytes)]
    print_table([(label, f"{format_value('bytes', count):>10}") for label, count in parts])
    per_sample = format_value("bytes", step["bytes_per_sample"])
    print_lines([f"steps per epoch: {step['steps_per_epoch']:,}; memory per sample of a micro batch: {per_sample}"])
    if space:
        print_table(map(_space_row, space), ("", "configuration", "steps per epoch", "peak memory"))
    print_lines(["These are peaks of training steps; the batch of an evaluation is set so that it requires no more."])
    if unmeasured := max(case.estimate.unmeasured_operations for case in (base, *space)):
        print_lines([f"unmeasured operations: {unmeasured}; their scratch memory is not included."])


def _space_row(case: Case) -> tuple[str, ...]:
    return case.name, _settings(case), f"{_count_steps(case):,}", format_value("bytes", case.estimate.peak_memory_bytes)


def _part_rows(estimate: "MemoryEstimate") -> list[tuple[str, int]]:
    return [(label, getattr(estimate, f"{part}_bytes")) for part, label in MEMORY_LABELS.items()]


def _measure_step(base: Case, device_type: str) -> dict[str, Any]:
    """The steps of an epoch, and the bytes by which the peak grows for each sample of a micro batch: against one of
    half the size, None for a single sample."""
    from sweep.probing.accumulation_costs import measure_bytes_per_sample
    from sweep.probing.estimate import estimate_memory
    from sweep.probing.shape import replace_micro_batch

    config, facts = base.config, base.facts
    peaks = {config.micro_batch: base.estimate.peak_memory_bytes}
    if half := config.micro_batch // 2:
        smaller = estimate_memory(replace_micro_batch(config, half), device_type=device_type, facts=facts)
        peaks[half] = smaller.peak_memory_bytes
    return {"steps_per_epoch": _count_steps(base), "bytes_per_sample": measure_bytes_per_sample(peaks)}


def _settings(case: Case) -> str:
    return " ".join(f"{path}={value}" for path, value in case.values.items())
