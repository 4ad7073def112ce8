"""``sweep replay``: how soon a search would have found the Pareto front, on recorded trainings."""

import sys
import time
from typing import Annotated, Any

import typer

from sweep.cli.arguments import find_records, parse_sets
from sweep.cli.options import RUNS, AsJson, Root, Sets
from sweep.cli.output import print_answer


def replay(
    table: Annotated[str, typer.Argument(help="Recorded trainings of a grid: an exported folder or a study's folder.")],
    sampler: Annotated[str, typer.Option(help="Sampler, as in a study.")] = "tpe",
    pruner: Annotated[str, typer.Option(help="Pruner, as in a study: none or front.")] = "none",
    seeds: Annotated[int, typer.Option(help="Number of searches; their seeds start at 0.")] = 20,
    trials: Annotated[int | None, typer.Option(help="Trials per search; default: the whole table.")] = None,
    target: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the table's hypervolume.")] = 0.99,
    until_target: Annotated[
        bool, typer.Option("--until-target", help="Stop each search as soon as it reaches the target.")
    ] = False,
    sets: Sets = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Replay a search on recorded trainings. Uses the sampler, pruner and tuner of `sweep run` on a simulated clock."""
    from sweep.search.replay.recorded_table import read_table
    from sweep.search.replay.replay import replay_seeds, summarize_searches

    began = time.monotonic()
    recorded = read_table(find_records(table, root))
    changes: dict[str, Any] = {
        "trials": len(recorded.points) if trials is None else trials,
        "confirm": recorded.confirm,
        **parse_sets(sets or []),
        "sampler": sampler,
        "pruner": pruner,
    }
    searches = []
    for search in replay_seeds(recorded, seeds, changes, target if until_target else None):
        searches.append(search)
        print(f"seed {search.seed}: {search.seconds_to(target):.5g} s", file=sys.stderr)
    answer = {"table": table, "sampler": sampler, "pruner": pruner, **summarize_searches(recorded, searches, target)}
    answer["wall_seconds"] = time.monotonic() - began
    print_answer(answer, _lines(answer), as_json=as_json)


def _lines(answer: dict[str, Any]) -> list[str]:
    seconds, pruned = answer["seconds_to_target"], answer["front_pruned"]
    speed = answer["simulated_seconds"] / max(answer["wall_seconds"], 1e-9)
    return [
        f"{answer['study']}: {answer['num_configurations']} configurations, {answer['num_front']} of them on the front",
        f"{answer['sampler']}, pruner {answer['pruner']}: {answer['target']:.0%} of the hypervolume after "
        f"{_words(seconds)} (median of {seconds['n']} searches, {answer['num_missed']} never)",
        f"with the confirm phase: {_words(answer['seconds_to_target_and_confirm'])}",
        f"searches that stopped no configuration of the front: {pruned['share_of_seeds_without']:.0%}",
        f"{answer['wall_seconds']:.1f} s for {answer['simulated_seconds']:.0f} s of searching: {speed:.0f}x",
    ]


def _words(seconds: dict[str, Any]) -> str:
    shown = ["never" if seconds[name] is None else f"{seconds[name]:.4g} s" for name in ("median", "low", "high")]
    return f"{shown[0]} [{shown[1]} to {shown[2]}]"
