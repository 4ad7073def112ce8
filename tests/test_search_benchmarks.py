"""The benchmarks of the search, on a table of formulas: what they count, and that they run."""

import json
from pathlib import Path

import pytest
from optuna.samplers import NSGAIISampler
from table_factory import table_spec, write_table

from benchmarks import __main__ as command
from benchmarks import search_arms, search_moasha, table
from benchmarks.replay import RecordedTable, read_table
from benchmarks.search_arms import is_ordered, optuna_seconds, our_search, our_seconds
from benchmarks.search_moasha import plain_table
from sweep.config.errors import InputError
from sweep.config.space import Parameter

SEARCHES = ["search_nsga2", "search_default", "search_front"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    write_table(place / "made", table_spec("made")).rename(place / "small")
    return place


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedTable:
    monkeypatch.setattr(search_arms, "TABLES", folder)
    return read_table(folder / "small")


def seconds_of(table: RecordedTable, seed: int) -> list[float]:
    configs = [table.spec.config(dict(zip(table.space, point, strict=True)), seed) for point in table.points]
    return [table.training(config).ending.measurements["total_seconds"] for config in configs]


def test_optuna_pays_for_each_point_once(small: RecordedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_arms, "TARGET", 2.0)  # out of reach, so that every row of the table is used
    spent = optuna_seconds(lambda seed: NSGAIISampler(seed=seed))(small, 0)
    assert spent == pytest.approx(sum(seconds_of(small, 0)))


def test_optuna_stops_paying_at_the_target(small: RecordedTable) -> None:
    spent = optuna_seconds(lambda seed: NSGAIISampler(seed=seed))(small, 1)
    assert min(seconds_of(small, 1)) <= spent < sum(seconds_of(small, 1))


def test_numbers_are_searched_by_rank_and_names_as_categories() -> None:
    assert is_ordered(Parameter(choice=(0.01, 0.1, 1.0)))
    assert is_ordered(Parameter(log2=(3, 5)))
    assert not is_ordered(Parameter(choice=("resnet8", "vit_micro")))
    assert not is_ordered(Parameter(choice=(False, True)))
    assert not is_ordered(Parameter(choice=(4, 1)))


def test_our_seconds_are_those_until_the_target(small: RecordedTable) -> None:
    assert our_seconds(small, 0) == our_search(small, 0).seconds_to(search_arms.TARGET) < sum(seconds_of(small, 0))


def test_the_table_for_another_process_has_the_curves_as_costs(small: RecordedTable) -> None:
    plain = json.loads(json.dumps(plain_table(small, 0)))
    assert plain["objectives"] == ["val_accuracy", "train_seconds", "peak_memory_bytes"]
    assert [item["values"] for item in plain["space"]] == [[16, 32, 64], [1, 4], [0.01, 0.1, 1.0]]
    for point, training, total in zip(plain["points"], plain["trainings"], seconds_of(small, 0), strict=True):
        config = small.spec.config(dict(zip(small.space, point, strict=True)))
        recorded = small.training(config)
        last = recorded.evaluations[-1]
        assert training["total"] == pytest.approx(total)
        seconds, *costs = training["reports"][-1]
        assert seconds < training["total"]
        memory = recorded.ending.measurements["peak_memory_bytes"]
        assert costs == pytest.approx([-last.val_accuracy, last.train_seconds, memory])
        assert len(training["reports"]) == len(recorded.evaluations)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.usefixtures("small")
def test_every_search_benchmark_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--tiny", "--pairs", "1"]) in (0, 1)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{name} ratio=")


def test_mo_asha_runs_in_its_own_environment(small: RecordedTable) -> None:
    if not search_moasha.PYTHON.exists():
        with pytest.raises(InputError, match="make bench-peers"):
            search_moasha.moasha_seconds(small, 0)
        pytest.skip("Syne Tune's environment is not there; make bench-peers makes it")
    spent = search_moasha.moasha_seconds(small, 0)
    assert spent > 0
    assert search_moasha.moasha_seconds(small, 0) == spent  # seeded


def test_tables_that_constants_were_chosen_on_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_arms, "TABLES", tmp_path)
    for name in ("digits", "fresh"):
        write_table(tmp_path / "made" / name, table_spec(name)).rename(tmp_path / name)
    (table,) = search_arms.shipped_tables()
    assert table.spec.name == "fresh"
    (old,) = search_arms.shipped_tables(looked_at=True)
    assert old.spec.name == "digits"
    assert search_arms.describe_tables([table])["tables"] == [
        f"fresh: 18 configurations, {table.on_front.sum()} on the front"
    ]


def test_without_a_table_they_say_how_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search_arms, "TABLES", tmp_path)
    assert command.main(["search_nsga2", "--pairs", "1"]) == 2
    assert "record_table" in capsys.readouterr().err


def test_a_peer_with_an_environment_of_its_own_is_found_and_not_listed() -> None:
    assert table.find("search_moasha").target == 1.5
    assert "search_moasha" not in table.MODULES
