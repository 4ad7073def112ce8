"""The benchmark of seconds until the answer, on a table of formulas with five seeds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from table_factory import table_spec, write_table

from benchmarks import answer_arms
from benchmarks.answer_orders import Searched, list_arms
from benchmarks.answer_references import price_naive, price_oracle
from benchmarks.answer_runs import Checkpoint, RunFigures, confirm_search, is_checkpoint, run_arm
from benchmarks.answer_summary import find_geometric_mean, find_ratio, summarize_table, summarize_tables
from benchmarks.answer_table import AnswerTable, find_margins, read_answer_table
from sweep.config.errors import InputError
from sweep.config.study_sections import Tolerance
from sweep.records.correct_images import encode_correct

inf = float("inf")
MODEL_BASED = ("optuna_gp", "qlognehvi")
SPACE = {
    "batch.micro": {"log2": [4, 7]},
    "batch.accumulation": {"choice": [1, 4]},
    "optimizer.lr": {"choice": [0.01, 0.03, 0.1, 1.0]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = table_spec("made", space=SPACE, answer={"tolerance": {"accuracy": 0.02}})
    return write_table(tmp_path_factory.mktemp("tables"), spec, 5)


@pytest.fixture(scope="module")
def table(folder: Path) -> AnswerTable:
    return read_answer_table(folder)


def test_a_configuration_is_right_by_tolerance_and_half_of_it() -> None:
    # the best; within the tolerance and fast; beyond half the tolerance, so no rival; too inaccurate; not complete
    accuracies = np.array([0.900, 0.896, 0.894, 0.880, np.nan])
    seconds = np.array([10.0, 5.0, 3.0, 1.0, 1.0])
    margins = find_margins(accuracies, seconds, Tolerance(accuracy=0.01))
    # 0.895 is what a rival must have; 0.89 what one must have itself
    assert margins == pytest.approx([-0.001, 0.001, 0.004, -0.01, -inf])
    nearly = find_margins(accuracies, np.array([5.2, 5.0, 3.0, 1.0, 1.0]), Tolerance(accuracy=0.01, time=0.05))
    assert nearly[0] == pytest.approx(0.001)  # the second one is not faster by more than the tolerance of time


def test_the_frames_of_a_study_have_its_numbers_and_seeds(table: AnswerTable) -> None:
    study = table.make_study(7)
    values = dict(zip(table.recorded.space, table.recorded.points[3], strict=True))
    first = table.train(study.config(values), 0, "search")
    again = table.train(study.config(values, 9), 1, "confirm")
    frames = table.make_frames([first, again, replace(first, number=2, outcome="pruned")], study)
    assert frames.trials[["number", "phase", "seed"]].to_numpy().tolist() == [[0, "search", 7], [1, "confirm", 9]]
    assert frames.spec == study
    recorded = [table.recorded.training(record.config).ending.measurements for record in (first, again)]
    assert frames.trials["val_accuracy"].tolist() == [each["val_accuracy"] for each in recorded]
    assert recorded[0]["val_accuracy"] != recorded[1]["val_accuracy"]


def test_the_images_of_a_trial_are_those_of_its_recorded_training(table: AnswerTable) -> None:
    rows = table.frames.trials["number"]
    bits = {int(number): np.arange(16) < number % 16 for number in rows}
    texts = [encode_correct(bits[int(number)]) for number in rows]
    images = rows.to_frame().assign(study="made", correct_images=texts)
    own = AnswerTable(table.recorded, replace(table.frames, correct_images=images))
    study = own.make_study(2)
    record = own.train(study.config(dict(zip(own.recorded.space, own.recorded.points[5], strict=True))), 40, "search")
    frames = own.make_frames([record], study)
    source = table.recorded.training(record.config).origin.split("/")[1]
    assert frames.find_correct is not None
    assert frames.find_correct("made", [40])[40].tolist() == bits[int(source)].tolist()


@pytest.mark.parametrize("arm", [arm for arm in list_arms() if arm not in MODEL_BASED])
def test_every_arm_tries_each_point_once_and_adds_up_its_seconds(table: AnswerTable, arm: str) -> None:
    searched = list(list_arms()[arm](table, 1))
    points = [table.find_point(each.record) for each in searched]
    assert sorted(points) == list(range(len(table.recorded.points)))
    seconds = [each.seconds for each in searched]
    spent = [later - earlier for earlier, later in pairwise([0.0, *seconds])]
    whole = [each.record.outcome == "complete" for each in searched]
    prices = [table.price(point) for point in points]
    assert all(whole) or arm == "ours"
    for is_whole, price, own in zip(whole, prices, spent, strict=True):
        assert own == pytest.approx(price) if is_whole else own < price
    assert points != sorted(points)


@pytest.mark.parametrize("arm", MODEL_BASED)
@pytest.mark.filterwarnings("ignore")
def test_model_based_peers_propose_after_their_first_random_points(table: AnswerTable, arm: str) -> None:
    if arm not in list_arms():
        pytest.skip("BoTorch is not there; pip install -e '.[bench]' installs it")
    order = list_arms()[arm](table, 0)
    searched = [next(order) for _ in range(13)]
    assert len({table.find_point(each.record) for each in searched}) == 13


def test_checkpoints_are_geometric() -> None:
    assert [number for number in range(1, 130) if is_checkpoint(number)] == [8, 11, 16, 22, 32, 45, 64, 90, 128]


def _in_order(table: AnswerTable, points: list[int], seed: int) -> Iterator[Searched]:
    study, spent = table.make_study(seed), 0.0
    for number, point in enumerate(points):
        values = dict(zip(table.recorded.space, table.recorded.points[point], strict=True))
        record = table.train(study.config(values), number, "search")
        spent += record.measurements["total_seconds"]
        yield Searched(record, spent)


def test_the_arrival_is_the_first_checkpoint_with_the_right_answer(table: AnswerTable) -> None:
    wrong = [point for point in range(len(table.recorded.points)) if point not in table.right]
    points = [*wrong[:9], *sorted(table.right), *wrong[9:]]
    figures = run_arm(table, "made", lambda own, seed: _in_order(own, points, seed), 0)
    assert figures.checkpoints[0].num_trials == 11  # at 8 nothing right was trained
    assert figures.arrival is not None
    assert figures.arrival == figures.checkpoints[-1]
    assert not any(each.is_settled and each.is_right for each in figures.checkpoints[:-1])
    searched = list(_in_order(table, points, 0))[: figures.arrival.num_trials]
    assert figures.arrival.search_seconds == searched[-1].seconds
    confirmed = confirm_search(table, [each.record for each in searched], table.make_study(0))
    assert confirmed.is_settled
    assert confirmed.row in table.right
    assert confirmed.seconds == figures.arrival.confirm_seconds > 0
    assert figures.spent_seconds == figures.arrival.search_seconds + figures.arrival.confirm_seconds
    assert list(figures.shares) == sorted(figures.shares)


def test_a_search_without_a_right_configuration_never_arrives(table: AnswerTable) -> None:
    wrong = [point for point in range(len(table.recorded.points)) if point not in table.right]
    figures = run_arm(table, "made", lambda own, seed: _in_order(own, wrong, seed), 0)
    assert figures.arrival is None
    assert figures.checkpoints == ()
    assert figures.spent_seconds == pytest.approx(sum(table.price(point) for point in wrong))


def test_the_references_are_sums_of_recorded_trainings(table: AnswerTable) -> None:
    whole, search = price_oracle(table)
    assert whole == pytest.approx(5 * search)
    assert min(table.price(point) for point in table.right) < search < table.grid_seconds / 5
    # four rates are all there are, and 64 and 256 are had with two micro batches each
    sizes: dict[tuple[int, float], float] = {}
    for point in range(len(table.recorded.points)):
        values = dict(zip(table.recorded.space, table.recorded.points[point], strict=True))
        key = (values["batch.micro"] * values["batch.accumulation"], values["optimizer.lr"])
        sizes[key] = min(sizes.get(key, inf), table.price(point))
    assert len(sizes) == 24
    assert price_naive(table) == pytest.approx(3 * sum(sizes.values()))


def test_a_table_with_too_few_seeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 seeds"):
        read_answer_table(write_table(tmp_path, table_spec("few")))


def test_ratios_of_medians_with_their_intervals() -> None:
    known = find_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert known == {"ratio": 2.0, "low": 2.0, "high": 2.0}  # in pairs, every ratio is 2
    assert find_ratio([inf, inf, 4.0], [1.0, 2.0, 3.0])["ratio"] is None
    late = find_ratio([4.0, 4.0, 4.0, inf], [2.0, 2.0, 2.0, 2.0])
    assert (late["ratio"], late["low"], late["high"]) == (2.0, 2.0, None)
    assert find_ratio([inf], [inf])["ratio"] is None


def test_ratios_over_tables_are_geometric_means() -> None:
    assert find_geometric_mean([2.0, 8.0])["ratio"] == pytest.approx(4.0)
    found = find_geometric_mean([2.0, 8.0])
    assert (found["low"], found["high"]) == (pytest.approx(2.0), pytest.approx(8.0))
    assert find_geometric_mean([2.0, 0.0])["ratio"] is None
    assert find_geometric_mean([2.0, None]) == {"ratio": None, "low": None, "high": None, "num_without": 1}


def _figures(
    table: AnswerTable, arm: str, seed: int, search: float, confirm: float, arrives: bool = True
) -> RunFigures:
    checkpoint = Checkpoint(
        num_trials=8, search_seconds=search, confirm_seconds=confirm, num_confirmed=3, is_settled=arrives, is_right=True
    )
    return RunFigures(
        table=table.name,
        arm=arm,
        seed=seed,
        arrival=checkpoint if arrives else None,
        checkpoints=(checkpoint,),
        spent_seconds=search + confirm,
        shares=(0.5, 1.0),
    )


def test_a_table_is_summarized_by_medians_and_the_share_that_arrived(table: AnswerTable) -> None:
    runs = [_figures(table, "ours", seed, 10.0, 10.0) for seed in range(4)]
    runs += [_figures(table, "random", seed, 50.0, 10.0, seed < 3) for seed in range(4)]
    runs += [_figures(table, "nsga2", seed, 90.0, 10.0, seed < 1) for seed in range(4)]
    summary = summarize_table(table, runs)
    random, nsga2 = summary["arms"]["random"], summary["arms"]["nsga2"]
    assert (random["median_seconds"], random["median_search_seconds"], random["share_arrived"]) == (60.0, 50.0, 0.75)
    assert random["ratio"]["ratio"] == 3.0
    assert random["ratio_of_search"]["ratio"] == 5.0
    assert (nsga2["median_seconds"], nsga2["share_arrived"], nsga2["ratio"]["ratio"]) == (None, 0.25, None)
    assert nsga2["ratio_at_least"]["ratio"] == 5.0
    assert summary["ours_share_of_oracle_speed"] == pytest.approx(price_oracle(table)[0] / 20.0)
    assert summary["ours_share_of_naive_cost"] == pytest.approx(20.0 / price_naive(table))
    over = summarize_tables([summary, summary])
    assert over["random"]["ratio"]["ratio"] == pytest.approx(3.0)
    assert (over["nsga2"]["ratio"]["num_without"], over["nsga2"]["share_arrived"]) == (2, 0.25)


def test_the_command_continues_where_it_was_interrupted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tables", str(folder), "--seeds", "1", "--arms", "random", "--workers", "1", "--to", str(tmp_path)]
    assert answer_arms.main(arguments) == 0
    printed = capsys.readouterr().out
    assert [line.split(" | ")[1] for line in printed.splitlines()[2:6]] == ["ours", "random", "oracle", "naive"]
    kept = sorted(tmp_path.glob("*/*.json"))
    assert [path.name for path in kept] == ["ours_0.json", "random_0.json"]
    made = json.loads(kept[0].read_text(encoding="utf-8"))
    arrival = {"num_trials": 9, "search_seconds": 111.0, "confirm_seconds": 12.0, "num_confirmed": 3}
    made |= {"arrival": {**arrival, "is_settled": True, "is_right": True}}
    kept[0].write_text(json.dumps(made), encoding="utf-8")
    kept[1].unlink()
    assert answer_arms.main(arguments) == 0
    again = capsys.readouterr().out.splitlines()
    assert "| made | ours | 123 | 111 | 100% |" in again[2]  # read, not searched again
    assert again[3].split(" | ")[2:5] == printed.splitlines()[3].split(" | ")[2:5]  # searched again
