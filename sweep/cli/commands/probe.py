"""``sweep probe``: how fast, how much memory, and which micro batches fit, measured on this device without training."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.cli.arguments import base_config, parse_bytes, parse_sets
from sweep.cli.commands.run import load_plugin
from sweep.cli.formats import format_bytes, format_seconds, visible

if TYPE_CHECKING:
    from sweep.records.probe_records import ProbeRecord
    from sweep.search.loop.probe_report import ProbeReport


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("probe")(probe)


def probe(
    study: Annotated[str | None, typer.Argument(help="Take the base configuration of this study.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; repeatable.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What a probe may use, such as 8GiB, instead of nine tenths of what there is.")
    ] = None,
    one: Annotated[bool, typer.Option("--one", help="This shape alone, no other micro batches.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of all studies, which share the probes.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    plugin: Annotated[Path | None, typer.Option(help="A Python file that adds models or data.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Time steps of a configuration alone on the device, then find the largest micro batch that fits and the knee."""
    from sweep.executors.table import ExecutorSettings
    from sweep.probing.micro_batch_search import ProbeFailedError
    from sweep.search.loop.probe_report import check_probe, open_prober, probe_one, probe_sizes
    from sweep.search.loop.session import Options

    options = Options(root=root, executor=ExecutorSettings(device=device), plugin=load_plugin(plugin))
    config, limit = base_config(study, parse_sets(sets or [])), parse_bytes(memory, "--memory")
    check_probe(config, options)
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def hear(found: "ProbeRecord") -> None:
        console.print(Text(_line(found)))

    try:
        with open_prober(options, int(limit) if limit else None) as (prober, limit_bytes):
            report = probe_one(prober, config, limit_bytes) if one else probe_sizes(prober, config, limit_bytes, hear)
    except ProbeFailedError as error:
        console.print(Text(visible(str(error))))
        return 1
    if as_json:
        typer.echo(json.dumps(report.document()))
    else:
        _print(report)
    return 0 if report.search or report.probe.is_complete else 1


def _line(found: "ProbeRecord") -> str:
    if not found.is_complete:
        return f"micro batch {found.micro_batch}: {found.outcome}"
    return (
        f"micro batch {found.micro_batch}: {found.images_per_second or 0:,.0f} images/s, "
        f"{format_bytes(found.peak_memory_bytes or 0)}"
    )


def _print(report: "ProbeReport") -> None:
    console = Console(highlight=False, soft_wrap=True)
    probe = report.probe
    for name, value in _figures(probe):
        console.print(Text(f"{name:<22}{value}"))
    if probe.error:
        console.print(Text(visible(probe.error.strip().splitlines()[-1])))
    if report.search:
        _print_search(console, report)
    if report.splits:
        _print_splits(console, report)


def _figures(probe: "ProbeRecord") -> list[tuple[str, str]]:
    first = [("device", probe.device), ("micro batch", str(probe.micro_batch)), ("outcome", probe.outcome)]
    if not probe.is_complete:
        return first
    step = f"{format_seconds(probe.step_seconds_median or 0)}, p90 {format_seconds(probe.step_seconds_p90 or 0)}"
    measured = [
        ("step", f"{step} (median of {probe.num_windows} windows, {probe.num_steps} steps)"),
        ("update in it", format_seconds(probe.update_seconds) if probe.update_seconds else "-"),
        ("training", f"{probe.images_per_second or 0:,.0f} images/s"),
        ("data alone", f"{probe.data_images_per_second or 0:,.0f} images/s"),
        ("evaluation", f"{probe.eval_images_per_second or 0:,.0f} images/s"),
        ("peak memory", format_bytes(probe.peak_memory_bytes or 0)),
        ("before the clock", f"{format_seconds((probe.setup_seconds or 0) + (probe.warmup_seconds or 0))}"),
    ]
    flags = [("in doubt", ", ".join(probe.quality_flags))] if probe.quality_flags else []
    return first + measured + flags


def _print_search(console: Console, report: "ProbeReport") -> None:
    search = report.search
    assert search is not None
    limit = format_bytes(report.memory_limit_bytes)
    if search.largest is None:
        console.print(f"largest micro batch   none: not even one sample fits into {limit}")
        return
    refused = min((size for size, probe in search.tried.items() if not probe.is_complete), default=0)
    why = f"{refused} did not fit into {limit}" if refused else "the whole training split; memory was not the limit"
    console.print(Text(f"{'largest micro batch':<22}{search.largest} ({why})"))
    console.print(Text(f"{'throughput knee':<22}{search.knee or '-'} (smallest within 5 % of the best images/s)"))


def _print_splits(console: Console, report: "ProbeReport") -> None:
    table = Table(box=None)
    for title in ("accumulation", "micro batch", "time per global batch", "peak memory"):
        table.add_column(title, justify="right")
    for split in report.splits:
        seconds, peak = format_seconds(split.global_batch_seconds), format_bytes(split.peak_memory_bytes)
        table.add_row(str(split.accumulation), str(split.micro_batch), seconds, peak)
    console.print(table)
