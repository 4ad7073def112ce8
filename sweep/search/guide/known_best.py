"""The effective batch size that earlier records of the same images name as the one to use."""

from pathlib import Path

from sweep.analysis.answer.recommend import recommend
from sweep.config.errors import InputError, StoreError
from sweep.records.frames.frames import load_frames
from sweep.search.earlier.reuse_index import list_study_files

_MOST_STUDIES = 3  # that are read: an answer takes a second or more


def find_best_batch(root: Path, digest: str) -> int | None:
    """The effective batch size that the newest study under ``root`` on the images of ``digest`` names; None where no
    study names one."""
    files = sorted(list_study_files(root), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[:_MOST_STUDIES] if digest else ():
        try:
            frames = load_frames(file.parent, evaluations=True)
            if frames.data is None or frames.data.digest != digest:
                continue
            found = recommend(frames, uses=()).batch_size
        except (InputError, StoreError):  # it cannot be read, or holds nothing that can be compared
            continue
        if found is not None and found.named.global_batch_size is not None:
            return found.named.global_batch_size
    return None
