"""Files that end too early: what is read from them is whole, or is not there, and a refusal is one line."""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from records_factory import add_trials, make_config, make_ending, make_evaluation, make_store
from tally import Tally, rounds

from sweep.config.errors import InputError, StoreError
from sweep.records.files import export_frames, import_records, read_export
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.store import Store, open_store
from sweep.training.checkpoints import CheckpointFolder
from tests.checkpoint_storm import Part

pytestmark = pytest.mark.wide
Rows = set[tuple[str, ...]]


def offsets(size: int, count: int) -> list[int]:
    drawn = random.Random(size).sample(range(1, size - 1), max(0, count - 2))
    return [0, size - 1, *drawn][:count]


def torn(paths: Iterable[Path], count: int) -> Iterator[Path]:
    """Cuts the files off, one at one length at a time; each is whole again before the next."""
    files = sorted(paths)
    for index, path in enumerate(files):
        content = path.read_bytes()
        share = count // len(files) + (index < count % len(files))
        for offset in offsets(len(content), share):
            path.write_bytes(content[:offset])
            yield path
        path.write_bytes(content)


def rows_of(frames: Frames) -> Rows:
    named = {name: getattr(frames, name) for name in ("trials", "attempts", "evaluations", "probes", "studies")}
    return {
        (name, *map(repr, row))
        for name, frame in named.items()
        if isinstance(frame, pd.DataFrame)
        for row in frame.itertuples(index=False, name=None)
    }


def refusal_or(read: Callable[[], Frames]) -> Rows | str:
    try:
        return rows_of(read())
    except (InputError, StoreError) as error:
        return str(error)


def judge(tally: Tally, what: str, path: Path, whole: Rows, found: Rows | str) -> bool:
    """Counts a torn file; whether it was refused."""
    tally.count(f"torn files: {what}")
    if isinstance(found, str):
        assert len(found.splitlines()) == 1, found
        assert "Traceback" not in found
        return True
    half = found - whole
    tally.lost += [f"{path.name} of {path.stat().st_size} bytes: {row}" for row in half]
    return False


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "s" / "study.sqlite")
    add_trials(store, ["complete", "diverged", "complete", "crashed"])
    store.close()
    return tmp_path / "s"


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path, tally: Tally) -> None:
    folder = CheckpointFolder(tmp_path, "mine")
    for number in range(2):
        folder.save({"part": Part(number)})
    *_, last = sorted(tmp_path.iterdir())
    for path in torn([last], rounds(100)):
        tally.count("torn files: checkpoint")
        state = folder.load()
        if state is None or state["part"]["number"] != 0:
            tally.lost.append(f"{path.stat().st_size} bytes: {state}")
    assert tally.faults["torn files: checkpoint"] == rounds(100)
    whole = folder.load()
    assert whole is not None
    assert whole["part"]["number"] == 1


def test_a_torn_store_has_whole_records_or_is_refused(whole: Path, tally: Tally) -> None:
    expected, refused = rows_of(load_frames(whole, evaluations=True)), 0
    for path in torn([whole / "study.sqlite"], rounds(100)):
        found = refusal_or(lambda: load_frames(whole, evaluations=True))
        refused += judge(tally, "store", path, expected, found)
    assert refused


def test_a_torn_log_of_writes_costs_the_last_of_them(tmp_path: Path, tally: Tally) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    store = make_store(source / "study.sqlite")
    states = [set(), rows_of(load_frames(source, evaluations=True))]
    for _ in _writes(store):
        states.append(rows_of(load_frames(source, evaluations=True)))
    copy.mkdir()
    database, log = ((source / name).read_bytes() for name in ("study.sqlite", "study.sqlite-wal"))
    store.close()
    assert len(log) > 50_000
    reached = []
    for offset in sorted(offsets(len(log), rounds(100))):
        (copy / "study.sqlite").write_bytes(database)
        (copy / "study.sqlite-wal").write_bytes(log[:offset])
        (copy / "study.sqlite-shm").unlink(missing_ok=True)
        found = refusal_or(lambda: load_frames(copy, evaluations=True))
        judge(tally, "write-ahead log", copy / "study.sqlite-wal", set().union(*states), found)
        reached.append(0 if isinstance(found, str) else states.index(found))
    assert reached == sorted(reached)  # a longer log is never less on record
    assert reached[-1] >= len(states) - 2


def _writes(store: Store) -> Iterator[None]:
    for number in range(3):
        store.add_trial("s", number, "search", make_config(number), f"key{number}")
        yield
        store.start_attempt("s", number)
        yield
        for step in (10, 20):
            store.add_evaluation("s", number, 1, make_evaluation(step))
            yield
        store.end_attempt("s", number, 1, "", 1.25)
        yield
        store.finish_trial("s", number, make_ending(number))
        yield


def test_a_torn_export_is_refused_or_whole(whole: Path, tmp_path: Path, tally: Tally) -> None:
    out = tmp_path / "out"
    export_frames(load_frames(whole, evaluations=True, correct_images=True), out)
    expected = rows_of(read_export(out, ()))
    store = open_store(tmp_path / "other.sqlite", create=True)
    for path in torn(out.iterdir(), rounds(75)):
        judge(tally, "parquet", path, expected, refusal_or(lambda: read_export(out, ())))
        try:
            import_records(out, store)
        except InputError:
            assert store.study_names() == []
        else:
            assert rows_of(load_frames(tmp_path / "other.sqlite", evaluations=True)) == expected
            store.close()
            (tmp_path / "other.sqlite").unlink()
            store = open_store(tmp_path / "other.sqlite", create=True)
    store.close()
