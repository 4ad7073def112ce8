"""The benchmarks of answers: made-up truths, recorded tables, claims and the guide."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from table_factory import EPOCHS, EVALUATION_SECONDS, RESTS, SETUP_SECONDS, ending, table_spec, write_table

from benchmarks import __main__ as command
from benchmarks import ask_guide, claims_digits
from benchmarks.answer_arms import confirm_search, find_geometric_mean, find_ratio, is_checkpoint, run_arm
from benchmarks.answer_table import RecordedTable, find_margins, read_table
from benchmarks.answer_truth import FAMILIES, MadeStudy, make_spec, run_study
from benchmarks.replay import (
    ReplayingExecutor,
    Searched,
    SimulatedClock,
    list_arms,
    schedule_messages,
)
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import select_candidates
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.comparable import ACCURACY, select_comparable
from sweep.analysis.response import draw_response
from sweep.analysis.statistics import Spread
from sweep.config.errors import InputError
from sweep.config.space import pick_grid_point
from sweep.config.study import Tolerance
from sweep.records.messages import TrialTask
from sweep.records.records import encode_correct

pytestmark = pytest.mark.wide
INF = float("inf")
SPACE = {
    "batch.micro": {"log2": [4, 7]},
    "batch.accumulation": {"choice": [1, 4]},
    "optimizer.lr": {"choice": [0.01, 0.03, 0.1, 1.0]},
}


def test_neighbors_inform_about_a_configuration_with_one_seed() -> None:
    truth = FAMILIES["cliff"](np.random.default_rng(3), 0.006)
    study = MadeStudy(truth, make_spec(truth, 30, 3, confirm={"max_configurations": 0}), 3000, seed=11)
    records = select_comparable(study.run())  # type: ignore[arg-type]
    candidates = select_candidates(records, Limits())
    assert candidates is not None
    configs = [study.records[candidates.number(place)].config for place in range(len(candidates.rows))]
    exact = np.array([truth.accuracy(each.model.name, each.global_batch_size, each.optimizer.lr) for each in configs])
    measured = records.grouping.medians(records.done[ACCURACY].to_numpy(dtype=float))[0][candidates.rows]
    top = exact > exact.max() - 0.03
    of_response, of_seed = (
        np.sqrt(np.mean((values - exact)[top] ** 2)) for values in (candidates.values(ACCURACY), measured)
    )
    assert of_response < 0.8 * of_seed
    assert of_seed > 0.5 * 0.006
    low, high = np.quantile(candidates.values(ACCURACY, candidates.draws), (0.025, 0.975), axis=0)
    assert np.mean((low <= exact) & (exact <= high)) >= 0.85


def test_configurations_that_get_the_same_images_right_are_no_crash() -> None:
    """What they share is all of the error, or more by rounding, as is the spread of equal repeats."""
    truth = FAMILIES["cliff"](np.random.default_rng(2), 0.0)
    frames = MadeStudy(truth, make_spec(truth, 12, 5, confirm={"max_configurations": 0}), 200, seed=4).run()
    for number in frames.correct:
        frames.correct[number] = np.arange(200) >= 13
    frames.trials["val_accuracy"] = pd.array([187 / 200] * len(frames.trials), dtype="Float64")
    records = select_comparable(frames)  # type: ignore[arg-type]
    records._posteriors[ACCURACY] = replace(records.posterior(ACCURACY), spread=Spread(1e-17, 3), is_assumed=False)
    rows = np.arange(records.grouping.size)
    draws, means = np.full((100, len(rows)), 0.9), np.full(len(rows), 0.9)
    drawn, estimates, untried = draw_response(records, rows, draws, means, np.random.default_rng(0))
    assert np.isfinite(drawn).all()
    assert np.isfinite(untried.accuracies).all()
    assert estimates == pytest.approx(187 / 200)


def test_where_fresh_seeds_leave_nothing_to_name_another_one_gets_them_although_the_time_is_spent() -> None:
    """All the time goes to a configuration that is worse than it seemed. Its rival, which is then surely better, has no
    fresh seed."""
    figures = run_study("two_optima", 42_000_001, 12)
    assert figures.is_named
    assert figures.regret < 0.01


def test_a_study_is_judged_by_its_truth() -> None:
    figures = run_study("cliff", 2)
    assert figures.is_named
    assert figures.num_seeds >= 3
    assert 0.0 < figures.width < 0.1
    assert 0.0 <= figures.regret < 0.02  # the mean of the space is further from the best
    assert figures.is_near == (figures.regret <= 0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = table_spec("made", space=SPACE, answer={"tolerance": {"accuracy": 0.02}})
    return write_table(tmp_path_factory.mktemp("tables"), spec, 5)


@pytest.fixture(scope="module")
def table(folder: Path) -> RecordedTable:
    return read_table(folder)


def test_a_configuration_is_right_by_tolerance_and_half_of_it() -> None:
    # the best; within the tolerance and fast; beyond half the tolerance, so no rival; too inaccurate; not complete
    accuracies = np.array([0.900, 0.896, 0.894, 0.880, np.nan])
    margins = find_margins(accuracies, np.array([10.0, 5.0, 3.0, 1.0, 1.0]), Tolerance(accuracy=0.01))
    # 0.895 is what a rival must have; 0.89 what one must have itself
    assert margins == pytest.approx([-0.001, 0.001, 0.004, -0.01, -INF])
    nearly = find_margins(accuracies, np.array([5.2, 5.0, 3.0, 1.0, 1.0]), Tolerance(accuracy=0.01, time=0.05))
    assert nearly[0] == pytest.approx(0.001)  # the second one is not faster by more than the tolerance of time


def test_the_frames_of_a_study_have_its_numbers_seeds_and_images(table: RecordedTable) -> None:
    numbers = table.frames.trials["number"]
    bits = {int(number): np.arange(16) < number % 16 for number in numbers}
    texts = [encode_correct(bits[int(number)]) for number in numbers]
    images = numbers.to_frame().assign(study="made", correct_images=texts)
    own = RecordedTable(table.spec, replace(table.frames, correct_images=images))
    study = own.make_study(7)
    values = dict(zip(own.space, own.points[3], strict=True))
    first, again = own.train(study.config(values), 0, "search"), own.train(study.config(values, 9), 1, "confirm")
    frames = own.make_frames([first, again, replace(first, number=2, outcome="pruned")], study)
    rows = frames.trials[["number", "phase", "outcome", "seed"]].to_numpy().tolist()
    assert rows == [[0, "search", "complete", 7], [1, "confirm", "complete", 9], [2, "search", "pruned", 7]]
    recorded = [own.training(record.config) for record in (first, again)]
    accuracies = [each.ending.measurements["val_accuracy"] for each in recorded]
    assert frames.trials["val_accuracy"].fillna(-1.0).tolist() == [*accuracies, -1.0]
    assert frames.find_correct is not None
    assert frames.find_correct("made", [1])[1].tolist() == bits[int(recorded[1].origin.split("/")[1])].tolist()


@pytest.mark.parametrize("arm", ["ours", "optuna_default", "optuna_gp"])
@pytest.mark.filterwarnings("ignore")
def test_an_arm_tries_each_point_once_and_adds_up_its_seconds(table: RecordedTable, arm: str) -> None:
    order = list_arms()[arm](table, 1)
    is_slow = arm == "optuna_gp"
    searched = [next(order) for _ in range(13)] if is_slow else list(order)
    points = [table.find_point(each.record) for each in searched]
    assert len(set(points)) == len(points) == (13 if is_slow else len(table.points))
    assert points != sorted(points)
    spent = [later - earlier for earlier, later in pairwise([0.0, *(each.seconds for each in searched)])]
    for each, point, own in zip(searched, points, spent, strict=True):
        is_whole = each.record.outcome == "complete"
        assert is_whole or arm == "ours"
        assert own == pytest.approx(table.price(point)) if is_whole else own < table.price(point)


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


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 fresh seeds"):
        read_table(write_table(tmp_path / "few"))
    with pytest.raises(InputError, match="varies"):
        read_table(write_table(tmp_path / "none", table_spec(space={})))


def test_checkpoints_are_geometric() -> None:
    assert [number for number in range(1, 130) if is_checkpoint(number)] == [8, 11, 16, 22, 32, 45, 64, 90, 128]


def _in_order(table: RecordedTable, points: list[int], seed: int) -> Iterator[Searched]:
    study, spent = table.make_study(seed), 0.0
    for number, point in enumerate(points):
        values = dict(zip(table.space, table.points[point], strict=True))
        record = table.train(study.config(values), number, "search")
        spent += record.measurements["total_seconds"]
        yield Searched(record, spent)


def test_the_arrival_is_the_first_checkpoint_with_the_right_answer(table: RecordedTable) -> None:
    wrong = [point for point in range(len(table.points)) if point not in table.right]
    points = [*wrong[:9], *sorted(table.right), *wrong[9:]]
    figures = run_arm(table, "made", lambda own, seed: _in_order(own, points, seed), 0)
    assert figures.checkpoints[0].num_trials == 11  # at 8 nothing right was trained
    assert figures.arrival == figures.checkpoints[-1]
    assert not any(each.is_settled and each.is_right for each in figures.checkpoints[:-1])
    searched = list(_in_order(table, points, 0))[: figures.arrival.num_trials]
    confirmed = confirm_search(table, [each.record for each in searched], table.make_study(0))
    assert (confirmed.is_settled, confirmed.row in table.right) == (True, True)
    assert figures.spent_seconds == figures.whole_seconds == searched[-1].seconds + confirmed.seconds
    never = run_arm(table, "made", lambda own, seed: _in_order(own, wrong, seed), 0)
    assert (never.arrival, never.checkpoints, never.whole_seconds) == (None, (), INF)
    assert never.spent_seconds == pytest.approx(sum(table.price(point) for point in wrong))


def test_ratios_of_medians_and_their_geometric_means() -> None:
    assert find_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == {"ratio": 2.0, "low": 2.0, "high": 2.0}  # every pair is 2
    assert find_ratio([INF, INF, 4.0], [1.0, 2.0, 3.0])["ratio"] is None
    assert find_ratio([4.0, 4.0, 4.0, INF], [2.0] * 4) == {"ratio": 2.0, "low": 2.0, "high": None}
    assert find_ratio([INF], [INF])["ratio"] is None
    found = find_geometric_mean([2.0, 8.0])
    assert [found[key] for key in ("ratio", "low", "high")] == pytest.approx([4.0, 2.0, 8.0])
    assert find_geometric_mean([2.0, None]) == {"ratio": None, "low": None, "high": None, "num_without": 1}


def test_the_command_summarizes_and_continues_where_it_was_interrupted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["answer_arms", "--tables", str(folder), "--seeds", "1", "--arms", "random", "--workers", "1"]
    assert command.main([*arguments, "--to", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (
        list(json.loads(printed)["tables"][0]["arms"]) == list(json.loads(printed)["over_tables"]) == ["ours", "random"]
    )
    kept = sorted(tmp_path.glob("*/*.json"))
    assert [path.name for path in kept] == ["ours_0.json", "random_0.json"]
    written = kept[0].stat().st_mtime_ns
    kept[1].unlink()
    assert command.main([*arguments, "--to", str(tmp_path)]) == 0
    assert capsys.readouterr().out == printed
    assert (kept[0].stat().st_mtime_ns, kept[1].is_file()) == (written, True)


def test_every_claim_has_one_study_of_whole_repetitions(tmp_path: Path) -> None:
    names = [claim.name for claim in CLAIMS]
    studies = claims_digits.plan_studies(names, tmp_path / "weights.safetensors")
    assert sorted(name for study in studies for name in study.claims) == sorted(names)
    trainings = [study.spec.trials for study in studies]
    assert trainings == sorted(trainings)
    timed = {name for study in studies if study.is_timed for name in study.claims}
    assert {"accumulation_time", "memory_linear"} <= timed
    assert not timed & {"warmup_needed", "three_regimes"}
    (warmup,) = (study for study in studies if "warmup_needed" in study.claims)
    firsts = [(point["seed"], point["schedule.warmup"]) for point in warmup.spec.first[:6]]
    assert firsts == [(seed, warm) for seed in (0, 16, 8) for warm in (0.0, 0.1)]


def test_the_guide_is_compared_by_pairs_of_seeds() -> None:
    values = {"guide": [0.5, 0.7, 0.9], "oracle_named": [0.52, 0.71, 0.93], "usual": [0.9, 0.9, 0.9]}
    found = ask_guide.compare_arms(values, "oracle_named", "guide")
    assert found is not None
    # of 0.02, 0.01 and 0.03: their standard deviation is 0.01, and the quantile of t with 2 degrees is 4.303
    assert (found.mean, found.high - found.mean, found.n) == pytest.approx((0.02, 4.303 * 0.01 / 3**0.5, 3), rel=1e-3)
    summary = ask_guide.summarize({"a": {"share": 1.05, "accuracies": {"test": values}}})
    assert summary["median_regret"] == {"oracle_named": pytest.approx(0.02), "oracle_most_accurate": None}
    assert (summary["within_budget"]["share"], summary["better_than_usual"]["share"]) == (1.0, 0.0)
