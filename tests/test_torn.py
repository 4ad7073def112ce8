"""Files that were cut off and disks that are full: whole records or a refusal on one line, never half a row."""

import ctypes
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cli_calls import INLINE
from records_factory import add_trials, make_spec, make_store

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

_NUM_TRIALS = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    store = make_store(folder / "study" / "study.sqlite")
    with store.database.transaction():
        add_trials(store, ["complete"] * _NUM_TRIALS)
    store.close()
    return folder


def _offsets(num_bytes: int, num: int) -> list[int]:
    return sorted({0, 1, 99, *(num_bytes * index // num for index in range(1, num)), num_bytes - 2, num_bytes - 1})


@contextmanager
def _refused_on_one_line() -> Iterator[None]:
    refusal = ""
    try:
        yield
    except (InputError, StoreError) as error:
        refusal = str(error)
    assert "\n" not in refusal


def _refusal(place: Path) -> str:
    with pytest.raises((InputError, StoreError)) as refused:
        load_frames(place, evaluations=True)
    return str(refused.value)


def test_a_store_that_was_cut_off_is_refused_by_readers_and_writers(whole: Path, tmp_path: Path) -> None:
    content = (whole / "study" / "study.sqlite").read_bytes()
    path = tmp_path / "study.sqlite"
    for offset in _offsets(len(content), 20):
        path.write_bytes(content[:offset])
        message = _refusal(path)
        assert "\n" not in message
        assert "study.sqlite: " in message
        if offset > 16:  # an empty file is a store that is yet to be made
            assert f"the file is torn: {offset} of " in message
            with pytest.raises(InputError, match="the file is torn"):
                open_store(path, create=True)
            assert path.read_bytes() == content[:offset]


def test_a_store_whose_pages_are_missing_behind_its_head_is_refused(whole: Path, tmp_path: Path) -> None:
    content = bytearray((whole / "study" / "study.sqlite").read_bytes())
    path = tmp_path / "study.sqlite"
    num_pages = len(content) // 4096
    for kept in range(2, num_pages, 3):
        torn = content[: kept * 4096]
        torn[28:32] = kept.to_bytes(4, "big")  # as if the head had been written after the cut
        path.write_bytes(torn)
        with _refused_on_one_line():
            trials = load_frames(path, evaluations=True).trials
            assert trials["number"].tolist() == list(range(_NUM_TRIALS))
            assert trials["val_accuracy"].tolist() == [1 - 1 / (number + 2) for number in range(_NUM_TRIALS)]


def test_what_the_log_has_lost_is_absent_as_a_whole(tmp_path: Path) -> None:
    """SQLite's write-ahead log, cut at any place, holds the transactions before the cut."""
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete"] * 6)
    copy = tmp_path / "copy"
    copy.mkdir()
    log = (tmp_path / "study.sqlite-wal").read_bytes()
    seen = set()
    for offset in _offsets(len(log), 30):
        shutil.copy(tmp_path / "study.sqlite", copy / "study.sqlite")
        (copy / "study.sqlite-wal").write_bytes(log[:offset])
        (copy / "study.sqlite-shm").unlink(missing_ok=True)
        with _refused_on_one_line(), closing(open_store(copy, read_only=True)) as reader:
            records = reader.trial_records("s")
            assert [record.number for record in records] == list(range(len(records)))
            assert all(record.outcome == "complete" for record in records[:-1])
            seen.add(len(records))
    store.close()
    assert len(seen) > 2


@pytest.mark.parametrize("name", ["studies", "environments", "trials", "attempts", "evaluations", "probes"])
def test_an_export_of_which_one_file_was_cut_off_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out"
    export_frames(load_frames(whole / "study", evaluations=True, correct_images=True), folder)
    path = folder / f"{name}.parquet"
    content = path.read_bytes()
    for offset in _offsets(len(content), 6):
        path.write_bytes(content[:offset])
        assert "\n" not in _refusal(folder), offset


_MIB = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if _LIBC.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=24m") != 0:
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")
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
