"""``sweep probe``: how fast, how much memory, and which micro batches fit, measured on this device without training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from reports.labels import format_value
from sweep.cli.arguments import build_base_config, load_plugin, parse_bytes, parse_sets
from sweep.cli.options import RUNS, AsJson, BaseStudy, ConfigSets, Device, Plugin, Root
from sweep.cli.output import print_answer, print_lines, print_table

if TYPE_CHECKING:
    from sweep.probing.accumulation_costs import SplitStep
    from sweep.records.probe_record import ProbeRecord
    from sweep.search.loop.probe_report import ProbeReport

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
    from sweep.search.loop.probe_report import check_probe, open_prober, probe_one, probe_sizes
    from sweep.search.loop.run_options import Options

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
    rows = [*_figures(report.probe), *_step_rows(report), *(_search_rows(report) if report.search else [])]
    yield from (f"{name:<22}{value}" for name, value in rows)
    if report.probe.error:
        yield report.probe.error.strip().splitlines()[-1]


def _figures(probe: "ProbeRecord") -> list[tuple[str, str]]:
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
    from sweep.records.probe_record import MEMORY_LABELS

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
