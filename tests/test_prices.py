"""Prices beside times: in the forecast, the answer, the page, a notebook and the documents."""

from contextlib import closing
from pathlib import Path

import pytest
from records_factory import add_seeds, add_trials, make_spec, make_store

from reports import write_report
from reports.evidence import gather_evidence
from reports.texts import describe_batch_answer, describe_first
from sweep.analysis.recommendation import as_document, recommend
from sweep.cli.answer import format_use
from sweep.cli.study_run import _price_forecast, format_forecast
from sweep.config.errors import InputError
from sweep.config.study_file import find_differences
from sweep.records.loading import load_frames
from sweep.search.study_forecast import Forecast

FORECAST = Forecast(
    num_trials=4, num_reused=0, num_confirm=0, num_not_fitting=0, expected_total_seconds=3600.0,
    expected_total_seconds_low=1800.0, expected_total_seconds_high=7200.0, peak_memory_bytes_low=None,
    peak_memory_bytes_high=None, memory_limit_bytes=2**30, num_probes=0, probing_seconds=0.0,
)  # fmt: skip


def test_a_forecast_has_the_price_of_its_time() -> None:
    price = make_spec(price_per_hour=2.5, currency="EUR").price
    assert "forecast: price about 2.50 EUR (1.25 to 5.00)" in format_forecast(FORECAST, price)
    assert _price_forecast(FORECAST, price) == {
        "expected_total_price": 2.5, "expected_total_price_low": 1.25, "expected_total_price_high": 5.0,
        "currency": "EUR",
    }  # fmt: skip
    assert not any("price" in line for line in format_forecast(FORECAST, None))
    assert set(_price_forecast(FORECAST, None).values()) == {None, ""}


def test_a_price_may_change_between_two_runs() -> None:
    assert find_differences(make_spec(), make_spec(price_per_hour=3, currency="USD")) == []
    with pytest.raises(InputError, match="price_per_hour"):
        make_spec(price_per_hour=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of which an hour costs 36 EUR, so that 10.1 seconds cost 0.101 EUR."""
    spec = make_spec(price_per_hour=36.0, currency="EUR")
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        add_trials(store, ["complete", "complete"])
        add_seeds(store, of=0, first=2, gaps=(0.0, 0.01, 0.02))
        add_seeds(store, of=1, first=5, gaps=(0.0, 0.01, 0.02))
    return tmp_path


def test_the_answer_has_the_price_of_a_training(folder: Path) -> None:
    answer = recommend(folder)
    assert answer.batch_size is not None
    for item in (answer.batch_size.named, answer.uses["speed"]):
        assert item.price is not None
        assert item.price.median == pytest.approx(item.values["train_seconds"].median / 100)
        assert item.price.low <= item.price.median <= item.price.high
    document = as_document(answer)
    assert (document["price_per_hour"], document["currency"]) == (36.0, "EUR")
    assert document["uses"]["speed"]["price"] == vars(answer.uses["speed"].price)
    assert document["batch_size"]["curve"][0]["price"]["currency"] == "EUR"
    assert any(line.startswith("    price of a training: 0.1") for line in format_use(answer.uses["speed"]))
    notes = [row[3][1] for row in describe_batch_answer(answer.batch_size).rows]
    assert all("price 0.1" in note and "EUR" in note for note in notes)


def test_page_and_notebook_have_it(folder: Path) -> None:
    frames = load_frames(folder, evaluations=True)
    (chip,) = (each for each in describe_first(gather_evidence(frames)).chips if each.label == "Price of a training")
    assert chip.value.endswith(" EUR")
    assert "36.0 EUR an hour" in chip.sure
    assert "price of a training 0.1" in recommend(frames)._repr_html_()
    page = write_report(folder, formats=()).read_text()
    assert "Price of a training" in page


def test_without_a_price_nothing_is_priced(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "study.sqlite")) as store:
        add_trials(store, ["complete"])
        add_seeds(store, of=0, first=1)
    answer = recommend(tmp_path)
    assert answer.uses["speed"].price is None
    assert "price" not in answer._repr_html_()
