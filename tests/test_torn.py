"""Files that were cut off: whole records or a refusal on one line, never half a row."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from records_factory import add_trials, make_store

from sweep.config.errors import InputError, StoreError
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.store import open_store

_NUM_TRIALS = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    store = make_store(folder / "study" / "study.sqlite")
    with store.transaction():
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
            _assert_whole_records(load_frames(path, evaluations=True))


def _assert_whole_records(frames: Frames) -> None:
    assert frames.trials["number"].tolist() == list(range(_NUM_TRIALS))
    assert frames.trials["val_accuracy"].tolist() == [1 - 1 / (number + 2) for number in range(_NUM_TRIALS)]


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
