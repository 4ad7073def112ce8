"""``sweep replay``: how soon a search would have found the front, on trainings that were recorded once."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sweep.cli.arguments import parse_duration, parse_sets, study_place

if TYPE_CHECKING:
    from sweep.search.replay.recorded_table import Table


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("replay")(replay)


def replay(
    table: Annotated[str, typer.Argument(help="Recorded trainings of a grid: an exported folder or a study's folder.")],
    sampler: Annotated[str, typer.Option(help="tpe, nsga2, gp, qmc, random, grid ...: as in a study.")] = "tpe",
    pruner: Annotated[str, typer.Option(help="none, front: as in a study.")] = "none",
    seeds: Annotated[int, typer.Option(help="Searches, one seed each from 0.")] = 20,
    trials: Annotated[int | None, typer.Option(help="Trials of each search; the whole table when absent.")] = None,
    target: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the table's hypervolume.")] = 0.99,
    until_target: Annotated[
        bool, typer.Option("--until-target", help="End each search when it has reached the target.")
    ] = False,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another plain key of the study; repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="So many trials at once, to see how busy their supervisor is, and nothing else.")
    ] = None,
    trial_time: Annotated[str, typer.Option(help="How long one of their trials takes: 90s, 10m.")] = "10m",
    root: Annotated[Path, typer.Option(help="Folder of all studies.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Replay a search on recorded trainings, on a simulated clock: the sampler, pruner and tuner of `sweep run`."""
    from sweep.search.replay.recorded_table import read_table
    from sweep.search.replay.replays import searches, summarise

    began = time.monotonic()
    recorded = read_table(study_place(table, root))
    num_seeds = max(len(found) for found in recorded.curves.values())
    if workers is not None:
        plain = {"confirm": {"max_configurations": 0}, "trials": trials or 10 * workers, **parse_sets(sets or [])}
        plain |= {"sampler": sampler, "pruner": pruner}
        _tell_load(recorded, workers, parse_duration(trial_time, "--trial-time") or 0.0, root, plain, as_json=as_json)
        return
    changes: dict[str, Any] = {
        "trials": len(recorded.points) if trials is None else trials,
        # one seed of the table is the search's; the others are fresh
        "confirm": {"max_configurations": 4, "seeds": num_seeds - 1},
        **parse_sets(sets or []),
        "sampler": sampler,
        "pruner": pruner,
    }
    found = []
    for search in searches(recorded, seeds, changes, target if until_target else None):
        found.append(search)
        print(f"seed {search.seed}: {search.seconds_to(target):.5g} s", file=sys.stderr)
    answer = {"table": table, "sampler": sampler, "pruner": pruner, **summarise(recorded, found, target)}
    answer["wall_seconds"] = time.monotonic() - began
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _print(answer)


def _tell_load(
    table: "Table", workers: int, trial_seconds: float, root: Path, changes: dict[str, Any], *, as_json: bool
) -> None:
    from sweep.search.replay.replay_load import measure_load

    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="replay-", dir=root) as folder:  # on the disk that studies are on
        load = measure_load(table, workers, trial_seconds, Path(folder), **changes)
    if as_json:
        typer.echo(json.dumps(load.document()))
        return
    median, tail = load.ask_milliseconds
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"{load.num_workers:,} workers, {load.num_trials:,} trials of about {trial_seconds:g} s: "
        f"{load.num_events / load.simulated_seconds:,.0f} events a second"
    )
    console.print(
        f"the supervisor takes {load.busy_share:.1%} of one core, {load.wall_share:.1%} of the time with its waits"
    )
    console.print(
        f"a proposal takes {median:.3g} ms (99 % within {tail:.3g}), a trial {load.bytes_per_trial:,.0f} bytes"
    )


def _print(answer: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    seconds, pruned = answer["seconds_to_target"], answer["front_pruned"]
    speed = answer["simulated_seconds"] / max(answer["wall_seconds"], 1e-9)
    console.print(
        f"{answer['study']}: {answer['num_configurations']} configurations, {answer['num_front']} of them on the front"
    )
    console.print(
        f"{answer['sampler']}, pruner {answer['pruner']}: {answer['target']:.0%} of the hypervolume after "
        f"{_words(seconds)} (median of {seconds['n']} searches, {answer['num_missed']} never)"
    )
    console.print(f"with the confirm phase: {_words(answer['seconds_to_target_and_confirm'])}")
    console.print(f"searches that stopped no configuration of the front: {pruned['share_of_seeds_without']:.0%}")
    console.print(f"{answer['wall_seconds']:.1f} s for {answer['simulated_seconds']:.0f} s of searching: {speed:.0f}x")


def _words(seconds: dict[str, Any]) -> str:
    shown = ["never" if seconds[name] is None else f"{seconds[name]:.4g} s" for name in ("median", "low", "high")]
    return f"{shown[0]} [{shown[1]} to {shown[2]}]"
