"""Disks that are full, for real: a small tmpfs. Refused before anything runs, or stopped with nothing torn."""

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_calls import INLINE
from records_factory import make_spec

from sweep.cli.app import run_app
from sweep.config.errors import InputError, StoreError
from sweep.config.study import StudySpec
from sweep.executors.table import ExecutorSettings
from sweep.records.files import export_frames
from sweep.records.loading import load_frames
from sweep.records.records import TrialRecord
from sweep.records.store import open_store
from sweep.search.attempts import check_space_before
from sweep.search.session import Options, open_session
from sweep.search.tuner import Event, TrialEnded, TrialStarted

_MIB = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


def _mount(folder: Path, num_bytes: int, flags: int = 0) -> None:
    if _LIBC.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, f"size={num_bytes}".encode()) != 0:
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, 24 * _MIB)
    yield folder
    _LIBC.umount2(bytes(folder), _DETACH)


def _fill(disk: Path, leave_bytes: int = 0) -> None:
    with (disk / "ballast").open("wb") as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        os.posix_fallocate(file.fileno(), 0, max(free - leave_bytes, 1))


@pytest.fixture
def spec() -> StudySpec:
    base = {"data.name": "digits", "data.subset": 200, "budget.epochs": 1, "model.name": "resnet8"}
    space = {"batch.micro": {"choice": [50, 100, 200]}}
    return make_spec(base=base, space=space, sampler="grid", trials=3, confirm={"max_configurations": 1, "seeds": 1})


def _run(spec: StudySpec, disk: Path, fill_at: type[Event] | None = None) -> list[TrialRecord]:
    """Runs the study; the disk is full from the first event of that kind on."""
    options = Options(root=disk, executor=ExecutorSettings(name="inline", device="cpu"), reuse=False)
    with open_session(spec, options) as session:
        with closing(session.run()) as events:
            for event in events:
                if fill_at is not None and isinstance(event, fill_at) and not (disk / "ballast").exists():
                    _fill(disk)
        return session.store.trial_records("s")


def _assert_sound(disk: Path) -> None:
    with closing(sqlite3.connect(disk / "s" / "study.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.wide
@pytest.mark.parametrize("fill_at", [TrialStarted, TrialEnded])
def test_a_study_stops_on_a_full_disk_and_goes_on_when_there_is_room(
    disk: Path, spec: StudySpec, fill_at: type[Event]
) -> None:
    with pytest.raises(StoreError, match=r"full.*0\.0 MiB are free in .*, at least 12\.0 MiB are needed.*same command"):
        _run(spec, disk, fill_at)
    _assert_sound(disk)
    with closing(open_store(disk / "s", read_only=True)) as store:
        cut_off = store.trial_records("s")
    assert [record.outcome for record in cut_off] == ([None] if fill_at is TrialStarted else ["complete"])
    with pytest.raises((InputError, StoreError), match="MiB are needed"):
        _run(spec, disk)  # still full
    (disk / "ballast").unlink()
    records = _run(spec, disk)
    assert [record.number for record in records] == [0, 1, 2, 3]
    assert [record.outcome for record in records] == ["complete"] * 4
    if fill_at is TrialEnded:
        assert records[0] == cut_off[0]
    _assert_sound(disk)


def test_a_disk_that_will_not_do_is_refused_before_anything_runs(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _fill(disk, leave_bytes=8 * _MIB)
    path = disk.parent / "s.toml"
    path.write_text(
        'name = "s"\ntrials = 2\n[base]\ndata.name = "digits"\n[space]\n"batch.micro" = { choice = [50, 100] }\n'
    )
    assert run_app(["run", str(path), "--root", str(disk), *INLINE]) == 2
    message = capsys.readouterr().err
    assert "MiB are free" in message
    assert "MiB are needed. Free some space, or choose another disk with --root." in message
    with closing(open_store(disk / "s", read_only=True)) as store:
        assert store.trial_records("s") == []


def test_a_full_disk_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = iter([1 << 40])  # when the study begins
    monkeypatch.setattr("sweep.search.attempts.measure_free_bytes", lambda _folder: next(free, 0))
    monkeypatch.chdir(tmp_path)
    space = '[space]\n"batch.micro" = { choice = [50, 100] }\n'
    Path("s.toml").write_text(f'name = "s"\ntrials = 2\n[base]\ndata.subset = 100\nbudget.steps = 1\n{space}')
    command = ["run", "s.toml", "--root", "my runs", *INLINE]
    assert run_app(command) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "The disk is full: " in message
    assert "Free some space and run the same command again; records are kept." in message


def test_what_is_needed_counts_trials(disk: Path) -> None:
    check_space_before(disk, 0)
    for folder in (disk, disk / "not" / "yet" / "there"):
        with pytest.raises(InputError, match=r"at least 27\.6 MiB are needed"):
            check_space_before(folder, 1000)


def test_an_export_that_was_cut_short_is_none(disk: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "study.sqlite", create=True)
    store.create_study(make_spec())
    frames = load_frames(tmp_path, evaluations=True, correct_images=True)
    store.close()
    _fill(disk)
    with pytest.raises(InputError, match=r"cannot be written: No space left"):
        export_frames(frames, disk / "out", "csv")
    with pytest.raises(InputError, match=r"no study is recorded there"):
        load_frames(disk / "out")
