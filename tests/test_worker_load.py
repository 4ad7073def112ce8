"""Simulated workers, which a benchmark measures the supervisor with."""

import contextlib
from pathlib import Path

import pytest
from table_factory import EPOCHS, ending, table_spec, write_table

from benchmarks.replay import read_table, schedule_messages
from benchmarks.worker_load import measure_load, stretch_messages
from sweep.config.errors import InputError
from sweep.config.space import draw_point, pick_grid_point
from sweep.config.study import StudySpec
from sweep.records.messages import Ending, Heartbeat, Progress
from sweep.records.store.store import open_store


def fractions(folder: Path) -> Path:
    """A table whose learning rates are ranges to a search that may try any."""
    return write_table(folder, table_spec("fractions"))


def test_many_workers_show_what_their_supervisor_takes(tmp_path: Path) -> None:
    table = read_table(fractions(tmp_path))
    load = measure_load(table, 8, 60.0, tmp_path, trials=40, sampler="random", confirm={"max_configurations": 0})
    assert (load.num_workers, load.num_before) == (8, 0)
    # 8 had ended when counting began; it ends when the last 8 have work
    assert 16 <= load.num_trials <= 40 - 8
    assert load.simulated_seconds > 60.0
    assert 0 < load.busy_seconds < load.simulated_seconds
    assert 0 < load.busy_share < 1
    # two signs of progress a second and worker
    assert load.num_events > 1.5 * 8 * load.simulated_seconds
    assert load.bytes_per_trial > 500
    with contextlib.closing(open_store(tmp_path / "study.sqlite")) as store:
        records = store.trial_records("load")
        ended = [record for record in records if record.outcome == "complete"]
        assert len(ended) == load.num_trials + 8
        assert len({record.config.optimizer.lr for record in records}) == len(records)  # not those of the grid
        assert len(store.evaluations("load", ended[0].number)) == EPOCHS


def test_a_window_goes_on_from_what_is_on_record(tmp_path: Path) -> None:
    table = read_table(fractions(tmp_path))

    def put(file: Path, spec: StudySpec) -> None:
        with contextlib.closing(open_store(file, create=True)) as store:
            store.create_study(spec)
            for number in range(5):
                config = spec.config(draw_point(spec.space, 7, number))
                store.add_trial(spec.name, number, "search", config, f"key{number}")
                store.finish_trial(
                    spec.name, number, Ending(outcome="complete", measurements=ending(config).measurements, device="d")
                )

    load = measure_load(table, 2, 60.0, tmp_path, window_seconds=90.0, prepare=put, trials=50, sampler="random")
    assert load.num_before == 5
    assert 90.0 <= load.simulated_seconds < 92.0
    assert 1 <= load.num_trials < 20


def test_messages_are_stretched_with_heartbeats_between_them(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path))
    said = schedule_messages(table.training(table.spec.config(pick_grid_point(table.space, 4))))
    told = list(stretch_messages(said, 10.0))
    assert [seconds for seconds, _ in told] == sorted(seconds for seconds, _ in told)
    own = [(seconds, word) for seconds, word in told if word in [each for _, each in said]]
    assert own == [(10.0 * seconds, word) for seconds, word in said]
    between = 10.0 * (said[-1][0] - said[0][0])
    assert sum(isinstance(word, Heartbeat) for _, word in told) == pytest.approx(between / 2.0, abs=1)
    assert sum(isinstance(word, Progress) for _, word in told) == pytest.approx(between / 0.5, abs=2)
    assert len(list(stretch_messages(said, 10.0, 1e9))) == len(said)


def test_a_table_without_fractions_has_not_points_enough(tmp_path: Path) -> None:
    space = {"batch.micro": {"log2": [4, 6]}, "batch.accumulation": {"choice": [1, 4]}}
    with pytest.raises(InputError, match="no key over fractions"):
        measure_load(read_table(write_table(tmp_path, table_spec(space=space))), 2, 60.0, tmp_path, trials=6)
