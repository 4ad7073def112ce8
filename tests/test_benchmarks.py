"""The benchmarks' harness: arithmetic, exit codes, committed results; and one small run of each family of ratios."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from table_factory import table_spec, write_table

from benchmarks import __main__ as command
from benchmarks import harness, search
from benchmarks.answer_table import AnswerTable, read_answer_table
from benchmarks.gpu.measures import count_training_flops
from benchmarks.harness import BENCHMARKS, Arms, ArmsDifferError, Result, Setting, benchmark, measure, share_of
from sweep.config.errors import InputError
from sweep.config.space import Parameter

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


def counting(_setting: Setting) -> Iterator[Arms]:
    calls: list[str] = []

    def arm(name: str, figure: float) -> float:
        calls.append(name)
        return figure

    yield Arms(lambda pair: arm("A", 10.0 + pair), lambda _: arm("B", 5.0), lambda: {"order": "".join(calls)})


def differing(_setting: Setting) -> Iterator[Arms]:
    def check() -> dict[str, object]:
        raise ArmsDifferError("losses differ")

    yield Arms(lambda _pair: 1.0, lambda _pair: 1.0, check)


COUNTING = benchmark("counting", "counts", "images/s", "higher", 2.0)(counting)


def test_arms_take_turns_to_go_first_after_one_round_of_warm_up() -> None:
    measured = measure(COUNTING, Setting(CPU), num_pairs=3)
    assert measured.facts == {"order": "BAABBAAB"}
    assert (measured.ours, measured.theirs) == ((10.0, 11.0, 12.0), (5.0, 5.0, 5.0))


@pytest.mark.parametrize(
    ("better", "target", "code"), [("higher", 2.2, 0), ("higher", 2.21, 1), ("lower", 2.2, 0), ("lower", 2.19, 1)]
)
def test_exit_code_follows_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], better: str, target: float, code: int
) -> None:
    monkeypatch.setattr(command, "find", lambda _name: COUNTING._replace(target=target, better=better))
    assert command.main(["counting", "--pairs", "3"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == f"counting ratio=2.2 low=2 high=2.4 target={target:g} n=3"


def test_arms_that_differ_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find", lambda _: benchmark("differing", "", "s", "lower", 2.0)(differing))
    assert command.main(["differing", "--pairs", "2"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "losses differ" in output.err


@pytest.mark.parametrize(
    "words", ["no_such", "input --pairs 0", "input --device cuda:99", "claims_digits --root x --minutes 0"]
)
def test_wrong_input_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words.split()) == 2
    assert capsys.readouterr().out == ""


def test_every_name_has_a_benchmark_and_studies_have_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(command.RATIOS)
    for name in (command.RATIOS | command.PEERS).keys() - {"lightning"}:
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


@pytest.fixture(scope="module")
def made_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name in ("digits", "fresh"):
        write_table(folder / "made" / name, table_spec(name), 4).rename(folder / name)
    return folder


@pytest.fixture
def small(made_tables: Path, monkeypatch: pytest.MonkeyPatch) -> AnswerTable:
    monkeypatch.setattr(search, "TABLES", made_tables)
    return read_answer_table(made_tables / "fresh")


@pytest.mark.parametrize(
    "name", ["input", "harness", "noise", "ask", "frames", "search_nsga2", "search_front", "forecast"]
)
def test_a_family_runs(
    name: str, made_tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "TABLES", made_tables)
    assert command.main([name, "--tiny", "--pairs", "1"]) in (0, 1)
    match = LINE.match(capsys.readouterr().out.splitlines()[-1])
    assert match
    assert (match[1], match[6]) == (name, "1")


def test_a_peer_pays_for_each_point_once_until_the_target(small: AnswerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = [
        small.train(small.make_study(1).config(dict(zip(small.recorded.space, point, strict=True))), 0, "search")
        for point in small.recorded.points
    ]
    seconds = [record.measurements["total_seconds"] for record in prices]
    assert min(seconds) <= search.peer_seconds("nsga2", small, 1) < sum(seconds)
    assert search.our_seconds(small, 1) < sum(seconds)
    monkeypatch.setattr(search, "TARGET", 2.0)  # out of reach, so that every row of the table is used
    assert search.peer_seconds("nsga2", small, 1) == pytest.approx(sum(seconds))


def test_numbers_are_searched_by_rank_and_names_as_categories() -> None:
    assert all(map(search.is_ordered, (Parameter(choice=(0.01, 0.1, 1.0)), Parameter(log2=(3, 5)))))
    others = (("resnet8", "vit_micro"), (False, True), (4, 1))
    assert not any(search.is_ordered(Parameter(choice=values)) for values in others)


def test_the_table_for_another_process_has_the_curves_as_costs(small: AnswerTable) -> None:
    table = small.recorded
    plain = json.loads(json.dumps(search.plain_table(table, 0)))
    assert [item["values"] for item in plain["space"]] == [[16, 32, 64], [1, 4], [0.01, 0.1, 1.0]]
    for point, training in zip(plain["points"], plain["trainings"], strict=True):
        recorded = table.training(table.spec.config(dict(zip(table.space, point, strict=True)), 0))
        last, measured = recorded.evaluations[-1], recorded.ending.measurements
        seconds, *costs = training["reports"][-1]
        assert seconds < training["total"] == pytest.approx(measured["total_seconds"])
        assert costs == pytest.approx([-last.val_accuracy, last.train_seconds, measured["peak_memory_bytes"]])


def test_tables_that_constants_were_chosen_on_are_not_reported(
    small: AnswerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [table.name for table in search.shipped_tables()] == ["fresh"]
    described = f"fresh: {len(small.recorded.points)} configurations, {small.recorded.on_front.sum()} on the front"
    assert search.describe_tables([small])["tables"] == [described]
    monkeypatch.setattr(search, "TABLES", tmp_path / "none")
    with pytest.raises(InputError, match="benchmarks tables"):
        search.shipped_tables()


def test_mo_asha_runs_in_its_own_environment(small: AnswerTable) -> None:
    if not search.PEER_PYTHON.exists():
        with pytest.raises(InputError, match="make bench-peers"):
            search.moasha_seconds(small, 0)
        pytest.skip("Syne Tune's environment is not there; make bench-peers makes it")
    assert search.moasha_seconds(small, 0) == search.moasha_seconds(small, 0) > 0  # seeded
