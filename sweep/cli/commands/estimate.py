"""``sweep estimate``: the peak memory of a configuration, or of the corners of a study, without training."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.cli.arguments import find_study, parse_sets
from sweep.cli.commands.run import load_plugin
from sweep.cli.formats import format_bytes
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig, build_config, replace

if TYPE_CHECKING:
    from sweep.probing.estimate import MemoryEstimate

_MAX_CORNERS = 64  # as many as a study's own check looks at
_MAX_SIZES = 16  # micro batches shown one by one
_MICRO = "batch.micro"
_DEVICE_TYPES = ("auto", "cpu", "cuda")


class Case(NamedTuple):
    """A configuration's estimate; ``name`` says what it is to its study, ``values`` are its swept keys."""

    name: str
    values: dict[str, Any]
    estimate: "MemoryEstimate"


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("estimate")(estimate)


def estimate(
    study: Annotated[str | None, typer.Argument(help="Estimate the base and the corners of this study.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: what would train; it need not be here.")] = "auto",
    plugin: Annotated[Path | None, typer.Option(help="A Python file that adds models or data.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Forecast the peak memory of a configuration, by what it is for, without training it."""
    load_plugin(plugin)
    changes, device_type = parse_sets(sets or []), _device_type(device)
    if study is None:
        base = _case("configuration", {}, build_config(replace({}, changes), "--set"), device_type)
        space: list[Case] = []
    else:
        base, space = _study_cases(find_study(study, changes), device_type)
    if as_json:
        typer.echo(json.dumps(_figures(base.estimate) | {"space": [_point(case) for case in space]}))
    else:
        _print(base, space)
    return 0


def _device_type(name: str) -> str:
    if name not in _DEVICE_TYPES:
        raise InputError(f"--device {name}: estimate wants one of {', '.join(_DEVICE_TYPES)}.")
    if name != "auto":
        return name
    from sweep.measurement.device import resolve_device

    return resolve_device(name).type


def _study_cases(spec: StudySpec, device_type: str) -> tuple[Case, list[Case]]:
    """The base, and of the space each micro batch and the corners that need least and most."""

    def case(name: str, values: dict[str, Any]) -> Case:
        return _case(name, values, spec.config(values), device_type)

    micro = spec.space.get(_MICRO)
    sizes = [{_MICRO: size} for size in _few(micro)] if micro else []
    found = [case("micro batch", values) for values in sizes]
    corners = [case("corner", corner) for corner in islice(spec.corners(), _MAX_CORNERS)] if spec.space else []
    corners.sort(key=lambda each: each.estimate.peak_memory_bytes)
    if corners:
        found += [corners[0]._replace(name="smallest corner"), corners[-1]._replace(name="largest corner")]
    return case("base", {}), found


def _few(parameter: Parameter) -> Sequence[Scalar]:
    values = parameter.grid_values
    return values if values and len(values) <= _MAX_SIZES else parameter.extremes()


def _case(name: str, values: dict[str, Any], config: TrialConfig, device_type: str) -> Case:
    from sweep.probing.estimate import estimate_memory

    return Case(name, values, estimate_memory(config, device_type=device_type))


def _figures(found: "MemoryEstimate") -> dict[str, int]:
    return {"peak_memory_bytes": found.peak_memory_bytes, **asdict(found)}


def _point(case: Case) -> dict[str, Any]:
    return {"name": case.name, "config": case.values, **_figures(case.estimate)}


def _print(base: Case, space: list[Case]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{base.name}:")
    whole = Table(box=None, show_header=False)
    for name, count in _figures(base.estimate).items():
        whole.add_row(name, Text(format_bytes(count), justify="right"))
    console.print(whole)
    if not space:
        return
    points = Table(box=None)
    for title in ("", "configuration", "peak_memory_bytes"):
        points.add_column(title, overflow="fold")
    for case in space:
        values = " ".join(f"{path}={value}" for path, value in case.values.items())
        points.add_row(case.name, Text(values), format_bytes(case.estimate.peak_memory_bytes))
    console.print(points)
