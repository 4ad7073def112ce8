"""Places of records: studies behind a URL, the URL in a variable, passwords that are seen."""

import logging
from pathlib import Path

import pytest

from sweep.cli.app import run_app
from sweep.cli.arguments import find_records
from sweep.config.errors import InputError
from sweep.records.address import STORE_VARIABLE, has_password, split_study, store_path


@pytest.mark.parametrize(("place", "parts"), [
    ("postgresql+psycopg://u:p#x@h/db#s", ("postgresql+psycopg://u:p#x@h/db", "s")),
    ("postgresql+psycopg://u:p#x@h/db", ("postgresql+psycopg://u:p#x@h/db", None)),
    ("sqlite:////tmp/a.sqlite#my-study_2", ("sqlite:////tmp/a.sqlite", "my-study_2")),
    ("runs/a#b", ("runs/a#b", None)),
])  # fmt: skip
def test_a_study_may_be_named_behind_a_url(place: str, parts: tuple[str, str | None]) -> None:
    assert split_study(place) == parts


@pytest.mark.parametrize(("text", "expected"), [
    ("postgresql+psycopg://u:p@h/db", True), ("--store=postgresql+psycopg://u:p@h/db", True),
    ("postgresql+psycopg://u@h/db?password=p", True), ("postgresql+psycopg://u:p@h:port/db", True),
    ("postgresql+psycopg://u@h/db", False), ("sqlite:////tmp/a.sqlite", False), ("runs/u:p@h", False),
])  # fmt: skip
def test_a_password_is_seen(text: str, expected: bool) -> None:
    assert has_password(text) is expected


def test_a_password_in_the_command_line_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql+psycopg://u:canary@127.0.0.1:1/x"
    with caplog.at_level(logging.WARNING):
        assert run_app(["compare", url, url]) == 2
    (warning,) = [record.message for record in caplog.records if record.name == "sweep.cli.app"]
    assert "SWEEP_STORE" in warning
    assert "canary" not in caplog.text


def test_the_variable_stands_for_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    with pytest.raises(InputError, match="no such study folder"):
        find_records(STORE_VARIABLE, tmp_path)
    monkeypatch.setenv(STORE_VARIABLE, "sqlite:////x.sqlite")
    assert find_records(STORE_VARIABLE, tmp_path) == "sqlite:////x.sqlite"
    assert find_records(f"{STORE_VARIABLE}#s", tmp_path) == "sqlite:////x.sqlite#s"
    assert store_path("sqlite:////x.sqlite") == Path("/x.sqlite")


def test_the_name_of_a_study_is_not_taken_for_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert find_records("photos", Path("runs")) == "photos"
    (tmp_path / "runs/photos").mkdir(parents=True)
    (tmp_path / "runs/photos/study.sqlite").touch()
    assert find_records("photos", Path("runs")) == str(Path("runs/photos"))
    assert find_records("./photos", Path("runs")) == "./photos"
