"""``python -m benchmarks.record_table [DESIGN.toml ...]``: records every training of a grid, to replay searches on.

A design is a study file whose whole space is a grid. Its trainings are those of :func:`run_trial`, one thread each;
the records lie under ``runs/tables`` and the command continues where they end, so a table can be made in pieces. All
points are trained with the first seed, then with the next, in an order that is no order of the grid: what is there
at any moment is a balanced part of the whole.

Times are measured apart, because a busy machine spoils them and they depend on the shape alone: ``--times``, see
:mod:`benchmarks.table_times`. ``--export`` writes what is there as a table, see :mod:`benchmarks.table_export`.
"""

import argparse
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from benchmarks.table_data import load_design, offer_data
from benchmarks.table_design import Job, all_jobs, open_records, train
from benchmarks.table_export import export
from benchmarks.table_times import measure_times
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.messages import Ending, Evaluation, Message
from sweep.records.store.store import Store

FOLDER = Path(__file__).parent / "tables"
DESIGNS = tuple(
    FOLDER / f"{name}.toml" for name in ("gratings", "dots", "mixtures", "digits_blended", "cifar10_animals")
)
ROOT = Path("runs/tables")
NUM_SEEDS = 3


def record(spec: StudySpec, root: Path, num_seeds: int, processes: int, deadline: float) -> tuple[int, int]:
    """Trains what is missing until all is there or the deadline (``time.monotonic``); how many are there, of how
    many. A training that is cut short is not recorded."""
    jobs = list(all_jobs(spec, num_seeds))
    with open_records(spec, root) as store:
        done = {found.number for found in store.trial_records(spec.name) if found.outcome}
        left = iter([job for job in jobs if job.number not in done])
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(spec,)) as pool:
            begun = islice(left, processes if time.monotonic() < deadline else 0)
            running = {pool.submit(train, job): job for job in begun}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    done.add(_keep(store, spec, running.pop(future), future))
                    _tell(spec, len(done), len(jobs))
                    more = next(left, None) if time.monotonic() < deadline else None
                    if more:
                        running[pool.submit(train, more)] = more
    return len(done), len(jobs)


def _begin(spec: StudySpec) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that records
    offer_data(spec)


def _keep(store: Store, spec: StudySpec, job: Job, future: "Future[list[Message]]") -> int:
    messages = future.result()
    ending = messages[-1]
    assert isinstance(ending, Ending)
    if ending.outcome == "crashed":  # no result of the configuration
        raise RuntimeError(f"{spec.name}, training {job.number} crashed: {ending.error}")
    store.add_trial(spec.name, job.number, "search", job.config, f"{spec.name}-{job.number}")
    for message in messages:
        if isinstance(message, Evaluation):
            store.add_evaluation(spec.name, job.number, 1, message)
    store.finish_trial(spec.name, job.number, ending)
    return job.number


def _tell(spec: StudySpec, num_done: int, num_jobs: int) -> None:
    if num_done % 10 == 0 or num_done == num_jobs:
        print(f"{time.strftime('%H:%M:%S')} {spec.name}: {num_done} of {num_jobs} trainings", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every design is whole, 1 when something is left to do, 2 for input that is refused,
    130 when it was interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    deadline = time.monotonic() + 60 * options.minutes
    left = 0
    for path in options.designs or DESIGNS:
        spec = load_design(path)
        if options.times:
            offer_data(spec)
            measure_times(spec, options.root)
        elif options.export:
            print(export(spec, path, options.root, options.seeds, options.to))
        else:
            num_done, num_jobs = record(spec, options.root, options.seeds, options.processes, deadline)
            left += num_jobs - num_done
    return 1 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_table", description=__doc__)
    parser.add_argument(
        "designs", nargs="*", type=Path, help="study files (those that no constant of a sampler was chosen on)"
    )
    parser.add_argument("--minutes", type=float, default=180.0, help="begin no training after this long (180)")
    parser.add_argument("--processes", type=int, default=2, help="trainings at once, one thread each (2)")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help=f"trainings of each point ({NUM_SEEDS})")
    parser.add_argument("--root", type=Path, default=ROOT, help=f"where the records lie ({ROOT})")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the exported tables")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--times", action="store_true", help="measure the times of every shape instead, alone")
    action.add_argument("--export", action="store_true", help="write what is recorded as a table instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
