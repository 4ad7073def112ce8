"""``sweep estimate``: the peak memory of a configuration, or of the corners of a study, without training."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reports.labels import format_value
from sweep.cli.app import print_answer, print_lines, print_table
from sweep.cli.arguments import build_base_config, load_plugin, parse_bytes, parse_sets
from sweep.cli.options import RUNS, AsJson, BaseStudy, ConfigSets, Device, Plugin, Root, Sets
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.config.trial import Scalar, TrialConfig, build_config, replace_keys
from sweep.records.records import MEMORY_LABELS

if TYPE_CHECKING:
    from sweep.config.tables import DataFacts
    from sweep.probing.memory import MemoryEstimate
    from sweep.probing.micro_batch_search import SplitStep
    from sweep.records.records import ProbeRecord
    from sweep.search.single import ProbeReport


_MAX_CORNERS = 64  # as many as a study's own check looks at
_MAX_SIZES = 16  # micro batches shown one by one
_MICRO = "batch.micro"
_DEVICE_TYPES = ("auto", "cpu", "cuda")


class _Case(NamedTuple):
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
    from sweep.training.data.sources import find_facts

    load_plugin(plugin)
    changes, device_type = parse_sets(sets or []), _device_type(device)
    if study is None:
        config = build_config(replace_keys({}, changes), "--set")
        base = _case("configuration", {}, config, device_type, find_facts(config.data))
        space: list[_Case] = []
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


def _study_cases(spec: StudySpec, device_type: str) -> tuple[_Case, list[_Case]]:
    """The base, and of the space each micro batch and the corners that need least and most."""
    from sweep.training.data.sources import find_facts

    facts_of = cache(find_facts)  # once for all cases, because a folder of many images is read for it

    def case(name: str, values: dict[str, Any]) -> _Case:
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


def _case(name: str, values: dict[str, Any], config: TrialConfig, device_type: str, facts: "DataFacts") -> _Case:
    from sweep.probing.memory import estimate_memory

    return _Case(name, values, config, facts, estimate_memory(config, device_type=device_type, facts=facts))


def _figures(estimate: "MemoryEstimate") -> dict[str, int]:
    return {"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)}


def _point(case: _Case) -> dict[str, Any]:
    steps = {"steps_per_epoch": _count_steps(case)}
    return {"name": case.name, "config": case.values, **_figures(case.estimate), **steps}


def _count_steps(case: _Case) -> int:
    from sweep.probing.cost_model import count_epoch_steps

    return count_epoch_steps(case.config, case.facts.num_train)


def _print(base: _Case, step: dict[str, Any], space: list[_Case]) -> None:
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


def _space_row(case: _Case) -> tuple[str, ...]:
    return case.name, _settings(case), f"{_count_steps(case):,}", format_value("bytes", case.estimate.peak_memory_bytes)


def _part_rows(estimate: "MemoryEstimate") -> list[tuple[str, int]]:
    return [(label, getattr(estimate, f"{part}_bytes")) for part, label in MEMORY_LABELS.items()]


def _measure_step(base: _Case, device_type: str) -> dict[str, Any]:
    """The steps of an epoch, and the bytes by which the peak grows for each sample of a micro batch: against one of
    half the size, None for a single sample."""
    from sweep.probing.memory import estimate_memory
    from sweep.probing.micro_batch_search import measure_bytes_per_sample
    from sweep.probing.shape import replace_micro_batch

    config, facts = base.config, base.facts
    peaks = {config.micro_batch: base.estimate.peak_memory_bytes}
    if half := config.micro_batch // 2:
        smaller = estimate_memory(replace_micro_batch(config, half), device_type=device_type, facts=facts)
        peaks[half] = smaller.peak_memory_bytes
    return {"steps_per_epoch": _count_steps(base), "bytes_per_sample": measure_bytes_per_sample(peaks)}


def _settings(case: _Case) -> str:
    return " ".join(f"{path}={value}" for path, value in case.values.items())


# ``sweep probe``: how fast, how much memory, and which micro batches fit, measured on this device without training.

_SIZE_COLUMNS = ("micro batch", "steps per epoch", "training", "peak memory")
_SPLIT_COLUMNS = ("accumulation", "micro batch", "time per effective batch", "peak memory")


def probe(
    study: BaseStudy = None,
    sets: ConfigSets = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit of a probe, such as 8GiB; default: 90 % of the device's memory.")
    ] = None,
    one: Annotated[bool, typer.Option("--one", help="Probe only this configuration, no other micro batches.")] = False,
    root: Root = RUNS,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Measure step time, memory and the largest micro batch. Also finds the throughput knee. The configuration runs
    alone on the device; studies under the same root share the probes."""
    from sweep.executors.table import ExecutorSettings
    from sweep.probing.micro_batch_search import ProbeFailedError
    from sweep.search.session import Options
    from sweep.search.single import check_probe, open_prober, probe_one, probe_sizes

    options = Options(root=root, executor=ExecutorSettings(device=device), plugin=load_plugin(plugin))
    config, limit = build_base_config(study, parse_sets(sets or [])), parse_bytes(memory, "--memory")
    check_probe(config, options)

    def print_probe(probe: "ProbeRecord") -> None:
        print_lines([_line(probe)], err=True)

    try:
        with open_prober(options, int(limit) if limit else None) as (prober, limit_bytes):
            if one:
                report = probe_one(prober, config, limit_bytes)
            else:
                report = probe_sizes(prober, config, limit_bytes, print_probe)
    except ProbeFailedError as error:
        print_lines([str(error)], err=True)
        return 1
    print_answer(report.document(), _lines(report), as_json=as_json)
    if report.tried and not as_json:
        print_table([_size_row(size, report.epoch_steps[size], probe) for size, probe in report.tried], _SIZE_COLUMNS)
    if report.splits and not as_json:
        print_table(map(_split_row, report.splits), _SPLIT_COLUMNS)
        print_lines([f"accumulation: {report.accumulation_text}"] if report.accumulation_text else [])
    return 0 if report.search or report.probe.is_complete else 1


def _line(probe: "ProbeRecord") -> str:
    if not probe.is_complete:
        return f"micro batch {probe.micro_batch}: {probe.outcome}"
    return (
        f"micro batch {probe.micro_batch}: {probe.images_per_second or 0:,.0f} images/s, "
        f"{format_value('bytes', probe.peak_memory_bytes)}"
    )


def _lines(report: "ProbeReport") -> Iterator[str]:
    rows = [*_figures_probe(report.probe), *_step_rows(report), *(_search_rows(report) if report.search else [])]
    yield from (f"{name:<22}{value}" for name, value in rows)
    if report.probe.error:
        yield report.probe.error.strip().splitlines()[-1]


def _figures_probe(probe: "ProbeRecord") -> list[tuple[str, str]]:
    first = [("device", probe.device), ("micro batch", str(probe.micro_batch)), ("outcome", probe.outcome)]
    if not probe.is_complete:
        return first
    step = format_value("seconds", probe.step_seconds_median)
    measured = [
        ("step", f"{step} (median of {probe.num_windows} windows, {probe.num_steps} steps)"),
        ("update of that", format_value("seconds", probe.update_seconds)),
        ("training", f"{probe.images_per_second or 0:,.0f} images/s"),
        ("data alone", f"{probe.data_images_per_second or 0:,.0f} images/s"),
        ("evaluation", f"{probe.eval_images_per_second or 0:,.0f} images/s"),
        ("peak memory", format_value("bytes", probe.peak_memory_bytes)),
        ("of an evaluation", format_value("bytes", probe.eval_peak_memory_bytes)),
        ("set-up, warm-up", format_value("seconds", (probe.setup_seconds or 0) + (probe.warmup_seconds or 0))),
    ]
    flags = [("quality warnings", ", ".join(probe.quality_flags))] if probe.quality_flags else []
    return first + measured + flags


def _step_rows(report: "ProbeReport") -> list[tuple[str, str]]:
    from sweep.records.records import MEMORY_LABELS

    rows = [] if report.steps_per_epoch is None else [("steps per epoch", f"{report.steps_per_epoch:,}")]
    if report.bytes_per_sample is not None:
        rows.append(("memory per sample", f"{format_value('bytes', report.bytes_per_sample)} of a micro batch"))
    if report.memory_parts:
        parts = [(MEMORY_LABELS[part], count) for part, count in report.memory_parts.items()]
        shown = " + ".join(f"{label} {format_value('bytes', count)}" for label, count in parts)
        rows.append(("memory, estimated", f"{shown} = {format_value('bytes', sum(report.memory_parts.values()))}"))
    return rows


def _search_rows(report: "ProbeReport") -> list[tuple[str, str]]:
    search = report.search
    assert search is not None
    limit = format_value("bytes", report.memory_limit_bytes)
    if search.largest is None:
        return [("largest micro batch", f"none: not even one sample fits into {limit}")]
    refused = min((size for size, probe in search.tried.items() if not probe.is_complete), default=0)
    why = f"{refused} did not fit into {limit}" if refused else "the whole training split; memory was not the limit"
    knee = f"{search.knee or '-'} (smallest within 5 % of the best images/s)"
    return [("largest micro batch", f"{search.largest} ({why})"), ("throughput knee", knee)]


def _size_row(micro_batch: int, epoch_steps: int, probe: "ProbeRecord") -> tuple[str, ...]:
    first = (str(micro_batch), f"{epoch_steps:,}")
    if not probe.is_complete:
        return (*first, probe.outcome, "")
    return (*first, f"{probe.images_per_second or 0:,.0f} images/s", format_value("bytes", probe.peak_memory_bytes))


def _split_row(split: "SplitStep") -> tuple[str, ...]:
    seconds, peak = format_value("seconds", split.global_batch_seconds), format_value("bytes", split.peak_memory_bytes)
    return str(split.accumulation), str(split.micro_batch), seconds, peak
