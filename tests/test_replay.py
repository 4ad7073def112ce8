import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from table_factory import (
    EPOCHS,
    EVALUATION_SECONDS,
    NUM_IMAGES,
    RESTS,
    SETUP_SECONDS,
    accuracy,
    correct_images,
    ending,
    table_spec,
    write_table,
)

from sweep.analysis import recommend
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.space import pick_grid_point
from sweep.config.study import Confirm, StudySpec
from sweep.records.frames.frames import load_frames, records_of_frame
from sweep.records.messages import Ending, Progress, TrialTask
from sweep.records.store.store import Store, open_store
from sweep.search.replay import replay
from sweep.search.replay.recorded_table import RecordedTable, make_replay_study, read_table
from sweep.search.replay.replay import find_median_interval, replay_search, replay_seeds, summarize_searches
from sweep.search.replay.replay_executor import ReplayingExecutor, SimulatedClock, schedule_messages


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module")
def table(place: Path) -> RecordedTable:
    return read_table(place)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    costs, others = (-one[0], *one[1:]), (-other[0], *other[1:])
    return costs != others and all(mine <= theirs for mine, theirs in zip(costs, others, strict=True))


def test_reference_front_is_that_of_the_means_over_the_seeds(table: RecordedTable) -> None:
    spec = table.spec
    assert len(table.points) == 18
    means = []
    for point in table.points:
        configs = [spec.config(dict(zip(spec.space, point, strict=True)), seed) for seed in range(3)]
        measured = [ending(config).measurements for config in configs]
        means.append(tuple(float(np.mean([row[name] for row in measured])) for name in spec.objectives))
        assert means[-1][0] == pytest.approx(np.mean([accuracy(config) for config in configs]))
    assert table.means == pytest.approx(np.array(means))
    expected = [not any(beats(other, mean) for other in means) for mean in means]
    assert list(table.on_front) == expected
    assert 1 < sum(expected) < 18
    assert table.share(list(np.flatnonzero(table.on_front))) == pytest.approx(1.0)


def test_a_training_is_told_when_it_was_told_once(table: RecordedTable) -> None:
    config = table.spec.config(pick_grid_point(table.space, 4))
    said = schedule_messages(table.training(config))
    first, first_told, last = said[0], said[1], said[-1]
    train = ending(config).measurements["train_seconds"]
    assert first[0] == SETUP_SECONDS
    assert isinstance(first[1], Progress)
    assert first[1].peak_memory_bytes == ending(config).measurements["peak_memory_bytes"]
    assert first_told[0] == pytest.approx(SETUP_SECONDS + train / EPOCHS + EVALUATION_SECONDS)
    assert last[0] == pytest.approx(SETUP_SECONDS + train + RESTS)
    assert isinstance(last[1], Ending)
    assert [seconds for seconds, _ in said] == sorted(seconds for seconds, _ in said)


def test_a_stopped_training_costs_what_passed_until_then(table: RecordedTable) -> None:
    clock = SimulatedClock()
    executor = ReplayingExecutor(lambda config: iter(schedule_messages(table.training(config))), clock, "cpu")
    config = table.spec.config(pick_grid_point(table.space, 0))
    executor.start(TrialTask(number=0, config=config))
    news: list[object] = []
    while len(news) < 2:  # what it knew before the first step, and an evaluation
        before = clock()
        news += executor.poll(0.5)
        assert clock() - before <= 0.5
    assert clock() == pytest.approx(schedule_messages(table.training(config))[1][0])
    executor.stop(0)
    assert executor.poll(10.0) == []
    executor.start(TrialTask(number=1, config=config))
    with pytest.raises(RuntimeError, match="no slot"):
        executor.start(TrialTask(number=2, config=config))


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_whole_search_tries_every_point_once_and_takes_the_sum_of_their_times(
    table: RecordedTable, sampler: str
) -> None:
    search = replay_search(table, make_replay_study(table, "r", sampler=sampler, seed=5, trials=18))
    assert search.outcomes == {"complete": 18}
    seconds = [table.training(table.spec.config(dict(zip(table.space, p, strict=True)), 5)) for p in table.points]
    assert search.search_seconds == pytest.approx(sum(trial.ending.measurements["total_seconds"] for trial in seconds))
    assert search.progress[-1][1] == pytest.approx(1.0)
    assert search.confirm_seconds > 0
    shares = [share for _, share in search.progress]
    assert shares == sorted(shares)
    assert search.seconds_to(0.5) == next(when for when, share in search.progress if share >= 0.5)


def test_replays_are_deterministic_and_seeds_differ(table: RecordedTable) -> None:
    def runs(seed: int) -> list[tuple[float, float]]:
        return list(replay_search(table, make_replay_study(table, "r", sampler="tpe", seed=seed, trials=12)).progress)

    assert runs(3) == runs(3)
    assert runs(3) != runs(4)


def test_a_search_ends_at_its_target(table: RecordedTable) -> None:
    spec = make_replay_study(table, "r", sampler="random", seed=0, trials=18)
    whole, short = replay_search(table, spec), replay_search(table, spec, until=0.7)
    assert short.seconds_to(0.7) == whole.seconds_to(0.7) == short.search_seconds < whole.search_seconds
    assert short.seconds_to(1.0) == float("inf")


def test_points_that_were_not_recorded_are_replaced_by_their_neighbours(tmp_path: Path) -> None:
    part = read_table(write_table(tmp_path, num_rows=11))
    assert len(part.points) == 11
    search = replay_search(part, make_replay_study(part, "r", sampler="qmc", seed=0, trials=50))
    assert search.outcomes == {"complete": 11}  # each once, and then there is nothing left


def test_a_continuous_key_varies_over_what_was_recorded(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path))
    space = {**table.spec.space, "optimizer.lr": {"log": [0.001, 10.0]}}
    dumped = table.spec.model_dump(by_alias=True) | {"space": space}
    loose = RecordedTable(type(table.spec).model_validate(dumped), table.curves)
    assert loose.space["optimizer.lr"].choice == (0.01, 0.1, 1.0)
    assert loose.space["batch.micro"].log2 == (4, 6)


def test_a_search_that_never_arrives_counts_as_later_than_every_other() -> None:
    inf = float("inf")
    assert find_median_interval([1.0, 2.0, inf])[:1] == (2.0,)
    assert find_median_interval([1.0, inf, inf]).median == inf
    assert find_median_interval([1.0, 2.0, inf, inf]).median == inf
    low, high = find_median_interval(list(itertools.repeat(3.0, 20)))[1:3]
    assert (low, high) == (3.0, 3.0)


def test_seeds_are_summarised_with_what_was_missed(table: RecordedTable) -> None:
    found = list(replay_seeds(table, 4, {"sampler": "random", "trials": 3}))
    answer = summarize_searches(table, found, 1.0)
    assert [row["seed"] for row in answer["searches"]] == [0, 1, 2, 3]
    assert answer["num_missed"] == 4
    assert answer["seconds_to_target"] == {"median": None, "low": None, "high": None, "n": 4}
    curve = answer["hypervolume_over_cost"]
    assert curve[-1]["share"] == pytest.approx(np.median([row["final_share"] for row in answer["searches"]]))
    assert answer["front_pruned"] == {"median": 0.0, "share_of_seeds_without": 1.0}


def test_command_answers_in_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["replay", str(place), "--sampler", "random", "--seeds", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["num_configurations"] == 18
    assert answer["num_missed"] == 0
    assert answer["seconds_to_target"]["median"] < answer["simulated_seconds"] / 2
    for row in answer["searches"]:  # the 2 other seeds, for half the time of the search
        assert 0 < row["num_confirmed"] <= 2 * 16
        assert row["confirm_seconds"] <= 0.5 * row["search_seconds"]


def test_a_search_and_its_confirming_trials_are_different_trainings_whatever_the_seed(tmp_path: Path) -> None:
    five = read_table(write_table(tmp_path, num_seeds=5))
    for seed in range(5):
        spec = make_replay_study(five, "r", seed=seed, confirm={"seeds": 20})
        assert (spec.confirm.seeds, spec.confirm.max_configurations) == (4, 16)
        configs = [spec.config(pick_grid_point(five.space, 7), seed + offset) for offset in range(5)]
        assert len({five.training(config).origin for config in configs}) == 5
    assert make_replay_study(five, "r", confirm={"seeds": 2}).confirm.seeds == 2


def test_the_seeds_that_every_point_has_are_the_limit(tmp_path: Path) -> None:
    part = read_table(write_table(tmp_path, num_seeds=5, num_rows=3 * 18 + 5))  # a fourth training of five points
    assert part.num_fresh_seeds == 2
    assert make_replay_study(part, "r").confirm.seeds == 2


def test_the_limits_of_confirming_are_those_of_the_study_and_the_usual_ones_of_a_mere_recording(
    tmp_path: Path,
) -> None:
    own, none = {"max_configurations": 3, "seeds": 4, "share": 0.2}, {"max_configurations": 0, "seeds": 0}
    confirming, recording = (
        read_table(write_table(tmp_path / name, table_spec(name, confirm=confirm), num_seeds=5))
        for name, confirm in (("own", own), ("none", none))
    )
    assert confirming.confirm == own
    assert recording.confirm == Confirm().model_dump()


def test_the_records_of_a_replay_hold_which_images_were_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    five = read_table(write_table(tmp_path, num_seeds=5))

    @contextlib.contextmanager
    def kept(spec: StudySpec) -> Iterator[Store]:
        with contextlib.closing(open_store(tmp_path / "kept" / "study.sqlite", create=True)) as store:
            store.create_study(spec)
            yield store

    monkeypatch.setattr(replay, "_opened", kept)
    replay_search(five, make_replay_study(five, "r", sampler="random", seed=2, trials=18))
    frames = load_frames(tmp_path / "kept")
    assert frames.find_correct is not None
    records = records_of_frame(frames.trials)
    found = frames.find_correct("r", [record.number for record in records])
    assert {record.phase for record in records} == {"search", "confirm"}
    for record in records:
        recorded = record.config.model_copy(update={"seed": record.config.seed % 5})
        np.testing.assert_array_equal(found[record.number], correct_images(recorded))
    answer = recommend(frames)
    assert answer.validation.num_images == NUM_IMAGES
    assert "not on record" not in answer.validation.statement


def test_command_speaks_plainly(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["replay", str(place), "--seeds", "1", "--trials", "4", "--target", "1"]) == 0
    said = capsys.readouterr().out
    assert "18 configurations" in said
    assert "after never [never to never]" in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--sampler", "clever"], "clever"),
        (["--pruner", "axe"], "axe"),
        (["--seeds", "0"], "--seeds 0"),
        (["--trials", "0"], "trials"),
    ],
)
def test_command_refuses(place: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["replay", str(place), *arguments]) == 2
    assert word in capsys.readouterr().err


def test_a_study_that_varies_nothing_is_no_table(tmp_path: Path) -> None:
    spec = table_spec(space={})
    with pytest.raises(InputError, match="varies nothing"):
        read_table(write_table(tmp_path, spec))


def test_pruning_saves_time_of_the_clock_and_keeps_the_front(tmp_path: Path) -> None:
    space = {
        "batch.micro": {"log2": [4, 7]},
        "batch.accumulation": {"choice": [1, 4]},
        "optimizer.lr": {"choice": [0.001, 0.003, 0.01, 0.03, 0.1, 1.0]},
    }
    wide = read_table(write_table(tmp_path, table_spec("wide", space=space)))
    plain = {"sampler": "random", "seed": 1, "trials": 48, "confirm": {"max_configurations": 0, "seeds": 0}}
    whole, short = (
        replay_search(wide, make_replay_study(wide, "r", pruner=pruner, **plain)) for pruner in ("none", "front")
    )
    assert short.outcomes["pruned"] > 0
    assert short.outcomes["pruned"] + short.outcomes["complete"] == 48
    assert short.search_seconds < whole.search_seconds
    assert not short.pruned_front
    assert short.progress[-1][1] == pytest.approx(whole.progress[-1][1])
