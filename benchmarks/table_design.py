"""The trainings of a table: which they are, where their records lie, and how one is trained."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rules import fix_settings, scale_recipe
from sweep.config.errors import InputError
from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import Message, TrialTask
from sweep.records.store.store import Store, open_store

# Tables that were looked at while the search or the answer was changed: they are no evidence for either.
LOOKED_AT = ("digits", "cifar10", "digits_crops", "digits_vit", "prototypes", "shapes", "cifar10_three")


@dataclass(frozen=True)
class Job:
    """One training of the design."""

    number: int
    config: TrialConfig


def all_jobs(spec: StudySpec, num_seeds: int) -> Iterator[Job]:
    """Every training: all points with the study's seed, then all with the next. Where the space has the seed, its seeds
    in their order, and of the points whose rules give the same recipe the first alone.

    Raises:
        InputError: the space is no grid.
    """
    size = count_grid_points(spec.space)
    if size is None:
        raise InputError(f"{spec.name}: a table requires a grid; give choice, int or log2 for every key of its space.")
    if "seed" in spec.space:
        yield from _list_recipes(spec, size)
        return
    for number in range(size * num_seeds):
        turn, index = divmod(number, size)
        yield Job(number, spec.config(pick_grid_point(spec.space, index), spec.seed + turn))


def _list_recipes(spec: StudySpec, size: int) -> Iterator[Job]:
    jobs = (Job(number, spec.config(pick_grid_point(spec.space, number))) for number in range(size))
    seen = set()
    for job in sorted(jobs, key=lambda job: job.config.seed):
        config = job.config
        recipe = scale_recipe(config, config.global_batch_size)
        training = (fix_settings(config), config.batch, config.seed, recipe)
        if training not in seen:
            seen.add(training)
            yield job


@contextlib.contextmanager
def open_records(spec: StudySpec, root: Path) -> Iterator[Store]:
    """The store of the design's trainings.

    Raises:
        InputError: the design has changed since they were recorded.
    """
    with contextlib.closing(open_store(root / spec.name / "study.sqlite", create=True)) as store:
        known = store.load_spec(spec.name)
        if known is None:
            store.create_study(spec)
        elif changed := find_differences(known, spec):
            raise InputError(f"{root / spec.name}: recorded with another design: {'; '.join(changed)}. Move it away.")
        yield store


def train(job: Job, threads: int = 1) -> list[Message]:
    """Trains one configuration in this process, by the code that trains it in a study."""
    from sweep.training.loop.trial import run_trial

    return list(run_trial(TrialTask(number=job.number, config=job.config, device="cpu", threads=threads)))
