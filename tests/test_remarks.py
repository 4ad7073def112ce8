"""Notes and tags on trials: in the store, in frames, in exports, on the page and in the commands."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_calls import call_sweep
from postgres_server import Server, postgres
from records_factory import add_trials, make_spec, make_store

from reports.evidence import gather_evidence
from reports.page.data import describe_details
from sweep.config.errors import InputError
from sweep.records.frames.exchange import export_frames, import_records
from sweep.records.frames.frames import load_frames
from sweep.records.store.lock import study_lock
from sweep.records.store.remarks import add_note, add_tags, list_remarks, remove_remarks
from sweep.records.store.store import Store, open_store
from sweep.records.store.trial_queue import enqueue_point, list_waiting

__all__ = ["postgres"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(make_store(tmp_path / "runs/s/study.sqlite")) as opened:
        add_trials(opened, ["complete", "diverged", "complete"])
        add_note(opened.database, "s", 0, "the fan was off")
        add_note(opened.database, "s", 0, "<b>again</b>\nsecond line")
        add_tags(opened.database, "s", 0, ["keep", "paper"])
        add_tags(opened.database, "s", 2, ["keep", "keep"])
        yield opened


def texts(store: Store) -> list[tuple[int, str, str]]:
    return [(each.number, each.kind, each.text) for each in list_remarks(store.database, "s")]


@pytest.mark.usefixtures("store")
def test_frames_have_notes_and_tags(tmp_path: Path) -> None:
    frames = load_frames(tmp_path / "runs/s")
    assert frames.trials["tags"].tolist() == ["keep,paper", "", "keep"]
    assert frames.trials["notes"].tolist() == ["the fan was off\n<b>again</b>\nsecond line", "", ""]
    assert frames.remarks["position"].tolist() == [1, 2, 3, 4, 1]
    assert list(load_frames(tmp_path / "runs/s").trials["is_enqueued"]) == [False] * 3


def test_records_stay_as_they_are(store: Store) -> None:
    before = store.trial_records("s")
    remove_remarks(store.database, "s", 0, "tag", ["paper"])
    remove_remarks(store.database, "s", 0, "note", ["1"])
    assert texts(store) == [(0, "note", "<b>again</b>\nsecond line"), (0, "tag", "keep"), (2, "tag", "keep")]
    assert store.trial_records("s") == before


def test_an_export_and_an_import_lose_nothing(store: Store, tmp_path: Path) -> None:
    enqueue_point(store, "s", {"batch.micro": 64})
    for form in ("parquet", "csv"):
        export_frames(
            load_frames(tmp_path / "runs/s", evaluations=True, correct_images=True), tmp_path / form, format=form
        )
        with closing(open_store(tmp_path / f"{form}.sqlite", create=True)) as copy:
            import_records(tmp_path / form, copy)
            assert list_remarks(copy.database, "s") == list_remarks(store.database, "s")
            assert list_waiting(copy.database, "s") == list_waiting(store.database, "s")


@pytest.mark.usefixtures("store")
def test_the_page_has_them(tmp_path: Path) -> None:
    details = describe_details(gather_evidence(load_frames(tmp_path / "runs/s", evaluations=True)))
    row = details["number"].index(0)
    (column,) = (each for each in details["columns"] if each["label"] == "Tags")
    assert column["texts"][row] == "keep, paper"
    assert details["columns"].index(column) in details["shown"]
    assert "the fan was off" in details["notes"][row]
    assert "Tags: keep, paper" in details["notes"][row]


@pytest.mark.parametrize(
    ("tags", "message"),
    [(["two words"], "tag 'two words'"), (["a,b"], "tag 'a,b'"), (["x" * 65], "up to 64"), ([""], "tag ''")],
)
def test_a_text_that_is_no_tag_is_refused(store: Store, tags: list[str], message: str) -> None:
    before = texts(store)
    with pytest.raises(InputError, match=message):
        add_tags(store.database, "s", 0, ["good", *tags])
    assert texts(store) == before


def test_a_trial_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(InputError, match="there is no trial 9; its trials are 0 to 2"):
        add_note(store.database, "s", 9, "text")
    with pytest.raises(InputError, match="trial 0 has no tag 'other'"):
        remove_remarks(store.database, "s", 0, "tag", ["keep", "other"])
    assert (0, "tag", "keep") in texts(store)


def test_a_trial_without_an_outcome_runs_only_beside_its_supervisor(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "runs/s/study.sqlite")) as opened:
        add_trials(opened, ["complete", None])
    assert "interrupted" in call_sweep("trials", "s", cwd=tmp_path).stdout.splitlines()[1]
    with study_lock(tmp_path / "runs/s"):
        assert "running" in call_sweep("trials", "s", cwd=tmp_path).stdout.splitlines()[1]


@pytest.mark.usefixtures("store")
def test_the_commands_write_list_and_remove(tmp_path: Path) -> None:
    assert call_sweep("note", "s", "2", "looks odd", cwd=tmp_path).stdout == "1: looks odd\n"  # beside a tag
    assert call_sweep("note", "s", "2", "again", cwd=tmp_path).stdout == "1: looks odd\n2: again\n"
    assert call_sweep("note", "s", "2", "--remove", "2", cwd=tmp_path).stdout == "1: looks odd\n"
    assert "trial 2 has no note 2; its notes are 1 to 1." in call_sweep(
        "note", "s", "2", "--remove", "2", cwd=tmp_path
    ).stderr.replace("\n", " ")
    assert call_sweep("tag", "s", "1", "drop", cwd=tmp_path).stdout == "trial 1: drop\n"
    assert call_sweep("tag", "s", "1", "drop", "--remove", cwd=tmp_path).stdout == "trial 1: no tag\n"
    listed = json.loads(call_sweep("trials", "s", "--tag", "keep", "--json", cwd=tmp_path).stdout)
    assert [row["number"] for row in listed["trials"]] == [0, 2]
    assert [note["text"] for note in listed["trials"][1]["notes"]] == ["looks odd"]
    assert listed["trials"][0]["tags"] == ["keep", "paper"]
    assert listed["trials"][0]["val_accuracy"] == 0.5
    assert listed["trials"][0]["config"] == {"batch.micro": 16, "optimizer.lr": 0.001}
    assert [(note["number"], note["text"]) for note in listed["trials"][1]["notes"]] == [(1, "looks odd")]
    shown = call_sweep("trials", "s", "--outcome", "diverged", cwd=tmp_path)
    assert shown.returncode == 0
    (line,) = shown.stdout.splitlines()
    assert line.startswith("trial    1 search  diverged ")
    assert "tags" not in line
    shown = call_sweep("trials", "s", "--tag", "paper", cwd=tmp_path)
    assert "  tags: keep, paper\n           note 1: the fan was off\n" in shown.stdout
    wrong = call_sweep("note", "s", "9", "text", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")


def make_old(path: Path) -> None:
    """Turns a store into one of version 0001, which has neither remarks nor a queue."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in (
            "DROP TABLE sweep_remarks",
            "DROP TABLE sweep_queue",
            "ALTER TABLE sweep_trials DROP COLUMN is_enqueued",
            "UPDATE sweep_version SET version_num = '0001'",
        ):
            connection.execute(statement)


def test_a_store_of_before_is_read_and_completed(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "runs/s/study.sqlite"
    before = load_frames(file).trials.drop(columns=["tags", "notes"])
    store.close()
    make_old(file)
    frames = load_frames(file)  # which changes nothing
    assert frames.trials.drop(columns=["tags", "notes"]).equals(before)
    assert (len(frames.remarks), len(frames.queue)) == (0, 0)
    assert frames.trials["tags"].tolist() == ["", "", ""]
    with closing(open_store(file)) as completed:
        add_tags(completed.database, "s", 1, ["late"])
        assert texts(completed) == [(1, "tag", "late")]
        assert completed.load_spec("s") == make_spec()


@pytest.mark.postgres
def test_the_same_on_a_server(postgres: Server) -> None:
    with closing(open_store(postgres.url, create=True)) as store:
        store.create_study(make_spec())
        add_trials(store, ["complete"])
        add_note(store.database, "s", 0, "on a server")
        add_tags(store.database, "s", 0, ["keep"])
        waiting = enqueue_point(store, "s", {"batch.micro": 64})
        assert texts(store) == [(0, "note", "on a server"), (0, "tag", "keep")]
        assert [each.position for each in list_waiting(store.database, "s")] == [waiting.position]
    assert load_frames(f"{postgres.url}#s").trials["tags"].tolist() == ["keep"]
