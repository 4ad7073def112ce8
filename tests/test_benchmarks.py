"""The benchmarks' harness: arithmetic, exit codes, committed results; and one small run of each family of ratios."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import datasets, forecast, harness
from benchmarks.forecast import StudyFigures
from benchmarks.gpu.measures import count_training_flops
from benchmarks.harness import BENCHMARKS, Arms, Result, Setting, benchmark, measure, share_of
from benchmarks.memory_forecast import Judged, judge, list_configurations, summarize
from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study_file import load_study
from sweep.search import study_forecast
from sweep.search.study_forecast import SampleCosts

pytestmark = pytest.mark.wide
CPU = torch.device("cpu")
LINE = re.compile(r"^(\w+) ratio=([\d.e+-]+) low=(\S+) high=(\S+) target=([\d.]+) n=(\d+)$")


def result(ours: tuple[float, ...], theirs: tuple[float, ...], target: float = 2.0) -> Result:
    return Result("some", "images/s", "higher", target, ours, theirs, {}, 0.0, 0.0)


def test_ratio_is_the_median_over_pairs_with_its_bootstrap_interval() -> None:
    measured = result((2.0, 9.0, 4.0, 20.0, 6.0), (1.0, 3.0, 1.0, 10.0, 1.0))
    assert measured.ratios == (2.0, 3.0, 4.0, 2.0, 6.0)
    draws = np.random.default_rng(1).choice(measured.ratios, (20_000, 5))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    assert (measured.interval.low, measured.interval.high) == (low, high) == (2.0, 6.0)
    assert measured.line == "some ratio=3 low=2 high=6 target=2 n=5"  # not 41 / 16


@benchmark("counting", "counts", "images/s", "higher", 2.0)
def counting(_setting: Setting) -> Iterator[Arms]:
    calls: list[str] = []

    def arm(name: str, figure: float) -> float:
        calls.append(name)
        return figure

    yield Arms(lambda pair: arm("A", 10.0 + pair), lambda _: arm("B", 5.0), lambda: {"order": "".join(calls)})


def test_arms_take_turns_to_go_first_after_one_round_of_warm_up() -> None:
    measured = measure(counting, Setting(CPU), num_pairs=3)
    assert measured.facts == {"order": "BAABBAAB"}
    assert (measured.ours, measured.theirs) == ((10.0, 11.0, 12.0), (5.0, 5.0, 5.0))


@pytest.mark.parametrize(
    "words", ["no_such", "input --pairs 0", "input --device cuda:99", "claims_digits --root x --minutes 0"]
)
def test_wrong_input_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words.split()) == 2
    assert capsys.readouterr().out == ""


def test_every_name_has_a_benchmark_and_studies_have_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(command.RATIOS)
    for name in command.RATIOS:
        assert command.find(name) is BENCHMARKS[name]
    for name in command.STUDIES:
        with pytest.raises(SystemExit) as ended:
            command.main([name, "--help"])
        assert ended.value.code == 0


def test_a_saved_result_holds_raw_samples_and_the_environment(tmp_path: Path) -> None:
    path = harness.save_ratio(result((2.0, 3.0, 4.0, 2.0, 6.0), (1.0,) * 5), CPU, tmp_path)
    assert re.fullmatch(r"some-cpu_[a-z0-9_]+-\d{4}-\d\d-\d\d\.json", path.name)
    document = json.loads(path.read_text())
    assert document["ours"] == document["ratios"] == [2.0, 3.0, 4.0, 2.0, 6.0]
    assert document["environment"]["versions"]["torch"] == torch.__version__
    with pytest.raises(InputError, match="5 pairs"):
        harness.save_ratio(result((1.0,) * 4, (1.0,) * 4), CPU, tmp_path)


def test_committed_results_are_what_they_say() -> None:
    for path in harness.RESULTS.glob("*.json"):
        document = json.loads(path.read_text())
        if "interval" not in document:  # no ratio; of a GPU the pieces of one file may come from several machines
            environments = document.get("environments") or {"": document["environment"]}
            assert all(each["versions"]["torch"] for each in environments.values()), path.name
            continue
        again = Result(**{name: document[name] for name in Result.__dataclass_fields__})
        assert (again.line, again.is_met) == (document["line"], document["is_met"]), path.name
        assert len(again.ours) >= 5


def test_what_was_computed_is_kept_and_shares_have_exact_intervals(tmp_path: Path) -> None:
    assert [harness.keep(tmp_path / "a" / "x.json", lambda value=value: value) for value in (1, 2)] == [1, 1]
    found = share_of([True] * 9 + [False])
    assert (found["share"], found["n"]) == (0.9, 10)
    assert (found["low"], found["high"]) == pytest.approx((0.55498, 0.99747), abs=1e-4)  # Clopper and Pearson


def test_flops_of_a_linear_layer_are_its_products_forward_and_twice_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 10, bias=False))
    images, labels = torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    # the first layer's input requires no gradient
    assert count_training_flops(model, images, labels) == 2 * (2 * 8 * 16 + 3 * 16 * 10)


@pytest.mark.parametrize(
    "name",
    ["input", "harness", "noise", "script_trial", "script_loop", "frames", "report", "forecast", "map_decode",
     "map_load", "map_epoch", "map_steps"],
)  # fmt: skip
def test_a_family_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--tiny", "--pairs", "1"]) in (0, 1)
    match = LINE.match(capsys.readouterr().out.splitlines()[-1])
    assert match
    assert (match[1], match[6]) == (name, "1")


@pytest.mark.parametrize("path", sorted(harness.TABLES.glob("*.toml")), ids=lambda path: path.stem)
def test_designs_of_tables_can_be_run(path: Path) -> None:
    spec = load_study(path)
    assert spec.name == path.stem
    assert {spec.base["data.name"]} <= datasets.DATASETS.keys() | {"cifar10"}


@pytest.mark.parametrize("name", [name for name in datasets.MADE if not name.startswith("cifar10")])
def test_drawn_images_have_every_class_and_are_the_same_again(name: str) -> None:
    made = datasets.MADE[name].load(DataSection(name=name))
    assert set(made.train.labels.tolist()) == set(range(made.num_classes))
    again = datasets.MADE[name].load(DataSection(name=name))
    assert np.array_equal(again.train.pixels, made.train.pixels)
    means = [made.train.pixels[made.train.labels == label].mean(axis=0) for label in range(made.num_classes)]
    assert min(np.abs(one - other).max() for one, other in pairwise(means)) > 1.0


def test_the_calibration_finds_the_factor_and_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_forecast, "FACTOR", 1.0)
    monkeypatch.setattr(study_forecast, "WIDTH", 1.0)
    ten = np.full(4, 10.0)  # 20 trials of 10 seconds each, whose drawn totals have a deviation of 0.1
    costs = SampleCosts(search_seconds=ten, confirm_seconds=ten, num_trials=20, share_guessed=0.0, is_cap=False)
    work = {"num_trials": 20, "most_confirm": 0, "is_exact": True}
    lists = {name: np.asarray(value).tolist() for name, value in vars(costs).items()}
    known = {"expected_seconds": 200.0, "low_seconds": 170.0, "high_seconds": 240.0, "probing_seconds": 1.0}
    totals = 200.0 * 1.3 * np.exp(np.random.default_rng(0).normal(0, 0.25, 400))
    found = [
        StudyFigures(study="made", total_seconds=float(each), work=work, costs=lists, trials=[], **known)
        for each in totals
    ]
    assert forecast.calibrate(found) == (pytest.approx(1.3, rel=0.05), pytest.approx(2.5, rel=0.1))


def test_memory_is_judged_by_the_median_and_the_worst_error() -> None:
    one = judge(list_configurations()[0], torch.device("cpu"))
    assert abs(one.error) < 0.12
    line, is_met = summarize([one, Judged({}, 100, 120, 0)])
    assert (is_met, "worst_error=0.2000" in line) == (False, True)
