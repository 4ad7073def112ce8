"""Searches on recorded trainings: the table, its clock, and the tuner of real studies on both."""

from pathlib import Path

import numpy as np
import pytest
from table_factory import EPOCHS, EVALUATION_SECONDS, RESTS, SETUP_SECONDS, ending, table_spec, write_table

from benchmarks.replay import (
    RecordedTable,
    ReplayingExecutor,
    SimulatedClock,
    make_replay_study,
    read_table,
    replay_search,
    schedule_messages,
)
from sweep.config.errors import InputError
from sweep.config.space import pick_grid_point
from sweep.records.messages import TrialTask

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RecordedTable:
    return read_table(write_table(tmp_path_factory.mktemp("table")))


def test_reference_front_is_that_of_the_means_over_the_seeds(table: RecordedTable) -> None:
    for point, means in zip(table.points, table.means, strict=True):
        configs = [table.spec.config(dict(zip(table.spec.space, point, strict=True)), seed) for seed in range(3)]
        measured = [[ending(config).measurements[name] for name in table.spec.objectives] for config in configs]
        assert means == pytest.approx(np.mean(measured, axis=0))
    costs = table.means * table.signs
    beaten = [any((other <= own).all() and (other < own).any() for other in costs) for own in costs]
    assert [not each for each in beaten] == list(table.on_front)
    assert 1 < sum(table.on_front) < len(table.points) == 18
    assert table.share(list(np.flatnonzero(table.on_front))) == pytest.approx(1.0)


def test_a_training_is_told_when_it_was_told_once_and_a_stopped_one_costs_what_passed(table: RecordedTable) -> None:
    config = table.spec.config(pick_grid_point(table.space, 4))
    said = [seconds for seconds, _ in schedule_messages(table.training(config))]
    train = ending(config).measurements["train_seconds"]
    assert said[:2] == pytest.approx([SETUP_SECONDS, SETUP_SECONDS + train / EPOCHS + EVALUATION_SECONDS])
    assert said[-1] == pytest.approx(SETUP_SECONDS + train + RESTS)
    assert said == sorted(said)
    clock = SimulatedClock()
    executor = ReplayingExecutor(lambda each: iter(schedule_messages(table.training(each))), clock, "cpu")
    executor.start(TrialTask(number=0, config=config))
    news: list[object] = []
    while len(news) < 2:  # what it knew before the first step, and an evaluation
        news += executor.poll(0.5)
    assert clock() == pytest.approx(said[1])
    executor.stop(0)
    assert executor.poll(10.0) == []


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_whole_search_tries_every_point_once_and_repeats_itself(table: RecordedTable, sampler: str) -> None:
    spec = make_replay_study(table, "r", sampler=sampler, seed=5, trials=18)
    search, again, short = replay_search(table, spec), replay_search(table, spec), replay_search(table, spec, 0.7)
    trainings = [table.training(spec.config(dict(zip(table.space, point, strict=True)))) for point in table.points]
    assert search.outcomes == {"complete": 18}
    assert search.search_seconds == pytest.approx(sum(t.ending.measurements["total_seconds"] for t in trainings))
    assert search.progress == again.progress
    assert search.share == pytest.approx(1.0)
    assert short.search_seconds == short.seconds_to(0.7) == search.seconds_to(0.7) < search.search_seconds


def test_a_part_of_a_grid_and_what_is_no_table(tmp_path: Path) -> None:
    part = read_table(write_table(tmp_path / "part", num_rows=11))
    search = replay_search(part, make_replay_study(part, "r", sampler="qmc", seed=0, trials=50))
    assert search.outcomes == {"complete": 11}  # each once, by its neighbor, and then there is nothing left
    five = read_table(write_table(tmp_path / "five", num_seeds=5))
    assert make_replay_study(five, "r", confirm={"seeds": 20}).confirm.seeds == 4  # one is the search's
    with pytest.raises(InputError, match="varies nothing"):
        read_table(write_table(tmp_path / "none", table_spec(space={})))
