"""The best batch size on record, which the guide keeps beside the one that was given."""

from contextlib import closing
from pathlib import Path

from sweep.records.files import import_records
from sweep.records.loading import load_frames
from sweep.records.store import open_store
from sweep.search.guided_study import find_best_batch

GALLERY = Path(__file__).parents[1] / "docs/gallery/quickstart"


def test_the_batch_size_that_records_of_the_same_images_name(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    with closing(open_store(tmp_path / "quickstart/study.sqlite", create=True)) as store:
        import_records(GALLERY, store)
    frames = load_frames(GALLERY)
    assert frames.data is not None
    found = find_best_batch(tmp_path, frames.data.digest)
    assert found in set(frames.trials["global_batch_size"])
    assert find_best_batch(tmp_path, "other") is None
    assert find_best_batch(tmp_path / "nothing", frames.data.digest) is None
    (tmp_path / "quickstart/study.sqlite").write_bytes(b"no database")
    assert find_best_batch(tmp_path, frames.data.digest) is None
