"""``sweep cost``: peak memory without training, and on request step time and the micro batches that fit, measured."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reports.labels import format_value
from sweep.cli.app import join_settings, print_answer, print_lines, print_table
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    On,
    Plugin,
    Root,
    Sets,
    build_base_config,
    parse_bytes,
    parse_sets,
    use_plugin,
)
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.config.trial import TrialConfig

if TYPE_CHECKING:
    from sweep.config.tables import DataFacts
    from sweep.probing.memory import MemoryEstimate
    from sweep.records.records import ProbeRecord
    from sweep.search.session import Options
    from sweep.search.single import ProbeReport


_MAX_SIZES = 16  # micro batches shown one by one
_MICRO = "batch.micro"


class _Case(NamedTuple):
    """A configuration with its estimate. ``name`` is its role in the study, ``values`` are its swept keys, ``facts``
    are of its data set."""

    name: str
    values: dict[str, Any]
    config: TrialConfig
    facts: "DataFacts"
    estimate: "MemoryEstimate"


def cost(
    study: Annotated[
        str | None, typer.Argument(help="Study whose base and extremes are forecast; absent: the defaults.")
    ] = None,
    sets: Sets = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also step time, peak memory and the largest micro batch, measured.")
    ] = False,
    one: Annotated[
        bool, typer.Option("--one", help="With --measure: no other micro batch than the given one.")
    ] = False,
    memory: Annotated[
        str | None, typer.Option(help="With --measure: memory limit such as 8GiB; default: 90 % of what is free.")
    ] = None,
    root: Root = RUNS,
    on: On = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Forecast peak memory, or measure step time and memory. A forecast trains nothing and requires no GPU, also where
    `--on cuda` asks for one. With --measure the configuration runs alone on the device for some seconds; studies under
    the same root share what was measured."""
    from sweep.executors.table import read_executor

    plugin_path = use_plugin(plugin)
    changes, executor, limit = parse_sets(sets), read_executor(on), parse_bytes(memory, "--memory")
    if not measure and (given := [name for name, value in {"--one": one, "--memory": memory}.items() if value]):
        raise InputError(f"sweep cost: {given[0]} requires --measure.")
    spec = load_study(study, changes) if study else None
    config = spec.config({}) if spec else build_base_config(None, changes)
    if measure:
        from sweep.search.session import Options

        options = Options(root=root, executor=executor, plugin=plugin_path)
        return _measure(config, options, one=one, limit_bytes=int(limit) if limit else None, as_json=as_json)
    from sweep.executors.table import device_type

    # a forecast for CUDA requires no GPU
    kind = device_type(executor) if executor.device == "auto" else executor.device.partition(":")[0]
    base, space = _list_cases(config, spec, kind)
    document = (
        _list_figures(base)
        | {"bytes_per_sample": _measure_sample(base, kind)}
        | {"space": [_list_figures(case) | {"name": case.name, "config": case.values} for case in space]}
    )
    if as_json:
        print_answer(document, (), as_json=True)
    else:
        _print_forecast(base, document, space)
    return 0


# ---------------------------------------------------------------------- the forecast


def _list_cases(config: TrialConfig, spec: StudySpec | None, device_type: str) -> tuple[_Case, list[_Case]]:
    """The base, and of the space each micro batch and the corners that need least and most."""
    from sweep.probing.memory import estimate_memory
    from sweep.training.data.sources import find_facts

    facts_of = cache(find_facts)  # once for all cases, because a folder of many images is read for it

    def make_case(name: str, values: dict[str, Any], config: TrialConfig) -> _Case:
        facts = facts_of(config.data)
        return _Case(name, values, config, facts, estimate_memory(config, device_type=device_type, facts=facts))

    base = make_case("base" if spec else "configuration", {}, config)
    if spec is None or not spec.space:
        return base, []
    micro = spec.space.get(_MICRO)
    sizes = micro.extremes() if micro else ()
    if micro and micro.grid_values and len(micro.grid_values) <= _MAX_SIZES:
        sizes = micro.grid_values
    cases = [make_case("micro batch", {_MICRO: size}, spec.config({_MICRO: size})) for size in sizes]
    corners = [make_case("", corner, spec.config(corner)) for corner in spec.corners.points()]
    corners.sort(key=lambda case: case.estimate.peak_memory_bytes)
    ends = [corners[0]._replace(name="smallest corner"), corners[-1]._replace(name="largest corner")]
    return base, [*cases, *ends]


def _list_figures(case: _Case) -> dict[str, int]:
    from sweep.probing.cost_model import count_epoch_steps

    steps = count_epoch_steps(case.config, case.facts.num_train)
    return {"peak_memory_bytes": case.estimate.peak_memory_bytes, **asdict(case.estimate), "steps_per_epoch": steps}


def _measure_sample(base: _Case, device_type: str) -> float | None:
    """The bytes by which the peak grows for each sample of a micro batch: against one of half the size, None for a
    single sample."""
    from sweep.probing.memory import estimate_memory
    from sweep.probing.micro_batch_search import measure_bytes_per_sample
    from sweep.probing.shape import replace_micro_batch

    config, facts = base.config, base.facts
    peaks = {config.micro_batch: base.estimate.peak_memory_bytes}
    if half := config.micro_batch // 2:
        smaller = estimate_memory(replace_micro_batch(config, half), device_type=device_type, facts=facts)
        peaks[half] = smaller.peak_memory_bytes
    return measure_bytes_per_sample(peaks)


def _print_forecast(base: _Case, document: dict[str, Any], space: list[_Case]) -> None:
    from sweep.records.records import MEMORY_LABELS  # with NumPy

    print_lines([f"{base.name}:"])
    parts = [(label, getattr(base.estimate, f"{part}_bytes")) for part, label in MEMORY_LABELS.items()]
    parts.append(("together", base.estimate.peak_memory_bytes))
    print_table([(label, f"{format_value('bytes', count):>10}") for label, count in parts])
    per_sample = format_value("bytes", document["bytes_per_sample"])
    print_lines([f"steps per epoch: {document['steps_per_epoch']:,}; memory per sample of a micro batch: {per_sample}"])
    if space:
        rows = []
        for case in space:
            figures = _list_figures(case)
            peak = format_value("bytes", figures["peak_memory_bytes"])
            rows.append((case.name, join_settings(case.values), f"{figures['steps_per_epoch']:,}", peak))
        print_table(rows, ("", "configuration", "steps per epoch", "peak memory"))
    print_lines(["These are peaks of training steps; the batch of an evaluation is set so that it requires no more."])


# ---------------------------------------------------------------------- what is measured


def _measure(config: TrialConfig, options: "Options", *, one: bool, limit_bytes: int | None, as_json: bool) -> int:
    from sweep.probing.micro_batch_search import ProbeFailedError
    from sweep.search.single import check_probe, open_prober, probe_one, probe_sizes

    check_probe(config, options)

    def print_probe(probe: "ProbeRecord") -> None:
        print_lines([f"micro batch {probe.micro_batch}: {' '.join(_describe_probe(probe))}"], err=True)

    try:
        with open_prober(options, limit_bytes) as (prober, limit):
            report = probe_one(prober, config, limit) if one else probe_sizes(prober, config, limit, print_probe)
    except ProbeFailedError as error:
        print_lines([str(error)], err=True)
        return 1
    parts = {f"{part}_bytes": count for part, count in report.memory_parts.items()}
    if as_json:
        peak = {"peak_memory_bytes": sum(parts.values()) or None}
        print_answer(peak | parts | report.document(), (), as_json=True)
    else:
        _print_report(report)
    return 0 if report.search or report.probe.is_complete else 1


def _describe_probe(probe: "ProbeRecord") -> tuple[str, str]:
    if not probe.is_complete:
        return probe.outcome, ""
    return f"{probe.images_per_second or 0:,.0f} images/s", format_value("bytes", probe.peak_memory_bytes)


def _print_report(report: "ProbeReport") -> None:
    print_table([*_list_measured(report.probe), *_list_forecast(report), *_list_found(report)])
    if report.probe.error:
        print_lines(report.probe.error.strip().splitlines()[-1:])
    if report.tried:
        rows = [(str(size), f"{report.epoch_steps[size]:,}", *_describe_probe(probe)) for size, probe in report.tried]
        print_table(rows, ("micro batch", "steps per epoch", "training", "peak memory"))
    if report.splits:
        rows = [
            (
                str(split.accumulation),
                str(split.micro_batch),
                format_value("seconds", split.global_batch_seconds),
                format_value("bytes", split.peak_memory_bytes),
            )
            for split in report.splits
        ]
        print_table(rows, ("accumulation", "micro batch", "time per effective batch", "peak memory"))


def _list_measured(probe: "ProbeRecord") -> Iterator[tuple[str, str]]:
    yield "device", probe.device
    yield "micro batch", str(probe.micro_batch)
    yield "outcome", probe.outcome
    if not probe.is_complete:
        return
    step = format_value("seconds", probe.step_seconds_median)
    yield "step", f"{step} (median of {probe.num_windows} windows, {probe.num_steps} steps)"
    yield "update of a step", format_value("seconds", probe.update_seconds)
    yield "training", f"{probe.images_per_second or 0:,.0f} images/s"
    yield "data alone", f"{probe.data_images_per_second or 0:,.0f} images/s"
    yield "evaluation", f"{probe.eval_images_per_second or 0:,.0f} images/s"
    yield "peak memory", format_value("bytes", probe.peak_memory_bytes)
    yield "of an evaluation", format_value("bytes", probe.eval_peak_memory_bytes)
    yield "set-up, warm-up", format_value("seconds", (probe.setup_seconds or 0) + (probe.warmup_seconds or 0))
    if probe.quality_flags:
        yield "quality warnings", ", ".join(probe.quality_flags)


def _list_forecast(report: "ProbeReport") -> Iterator[tuple[str, str]]:
    if report.steps_per_epoch is not None:
        yield "steps per epoch", f"{report.steps_per_epoch:,}"
    if report.bytes_per_sample is not None:
        yield "memory per sample", f"{format_value('bytes', report.bytes_per_sample)} of a micro batch"
    if report.memory_parts:
        from sweep.records.records import MEMORY_LABELS

        parts = [(MEMORY_LABELS[part], count) for part, count in report.memory_parts.items()]
        shown = " + ".join(f"{label} {format_value('bytes', count)}" for label, count in parts)
        yield "memory, estimated", f"{shown} = {format_value('bytes', sum(report.memory_parts.values()))}"


def _list_found(report: "ProbeReport") -> Iterator[tuple[str, str]]:
    search = report.search
    if search is None:
        return
    limit = format_value("bytes", report.memory_limit_bytes)
    if search.largest is None:
        yield "largest micro batch", f"none: not even one sample fits into {limit}"
        return
    refused = min((size for size, probe in search.tried.items() if not probe.is_complete), default=0)
    why = f"{refused} did not fit into {limit}" if refused else "the whole training split; memory was not the limit"
    yield "largest micro batch", f"{search.largest} ({why})"
    yield "throughput knee", f"{search.knee or '-'} (smallest within 5 % of the best images/s)"
