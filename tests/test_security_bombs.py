"""Small files that would unpack to much, large ones that are no table, and pictures that are none: refused at once.

Where a bound needs more than a machine for tests has, the bound is lowered and not the rule.
"""

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from records_factory import add_trials, make_store

from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.executors.forkserver import Child, OutputFile
from sweep.records import frames as validation
from sweep.records.files import export_frames
from sweep.records.loading import load_frames
from sweep.records.messages import MAX_MESSAGE_BYTES, decode_message
from sweep.training.data import folders as decoding


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("exports")
    store = make_store(place / "s" / "study.sqlite")
    add_trials(store, ["complete"])
    store.close()
    export_frames(load_frames(place / "s", evaluations=True, correct_images=True), place / "out")
    return place / "out"


def _megabytes_of_one_text(path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, dtype=np.int32)), pa.array(["x" * 900_000]))
    pq.write_table(pa.table({"error": texts}), path, write_statistics=False)
    assert path.stat().st_size < 100_000  # and 2.7 GB as texts


def _ten_million_rows(path: Path) -> None:
    frame = pd.read_parquet(path)[["study", "number"]]
    pd.DataFrame(
        {"study": pd.Categorical.from_codes(np.zeros(10_000_001, dtype=np.int8), [frame["study"][0]])}
    ).to_parquet(path)


BOMBS: list[tuple[Callable[[Path], object], str]] = [
    (_megabytes_of_one_text, "more than 1073741824 characters"),
    (_ten_million_rows, "more than 10000000 rows"),
    (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "it is no file"),
    (lambda path: path.write_bytes(b"") or os.truncate(path, validation.MAX_FILE_BYTES + 1),
     "at most 1073741824 are taken"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BOMBS)))
def test_a_bomb_among_records_is_refused(case: int, exports: Path, tmp_path: Path) -> None:
    build, message = BOMBS[case]
    shutil.copytree(exports, tmp_path / "out")
    build(tmp_path / "out" / "trials.parquet")
    with pytest.raises(InputError, match=message):
        load_frames(tmp_path / "out", evaluations=True)


@pytest.mark.parametrize(("limit", "message"), [
    ("MAX_CELLS", "or more than 100 cells"), ("MAX_FILE_BYTES", "at most 100 are taken"),
])  # fmt: skip
def test_a_table_that_unpacks_to_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, exports: Path, limit: str, message: str
) -> None:
    monkeypatch.setattr(validation, limit, 100)
    with pytest.raises(InputError, match=message):
        load_frames(exports)


@pytest.mark.parametrize("text", [
    "name = 'a'\n" + "#" * 100_001,
    "[base]\n" + ".".join("a" * 49_000) + " = 1",
    "x = " + "[" * 20_000,
    "[base]\n" + "".join(f"k{n} = 1\n" for n in range(9_000)),
    f"[space]\n'batch.micro' = {{ choice = {list(range(1, 9_000))} }}",
    "[space]\n'batch.micro' = { int = [1, " + "9" * 4_000 + "] }",
], ids=["long", "dotted", "nested", "keys", "choices", "digits"])  # fmt: skip
def test_a_study_file_without_measure_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        load_study(tmp_path / "a.toml")
    assert len(str(refused.value)) < 50_000


def test_a_message_without_end_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    child = Child(0, reading, OutputFile(tmp_path / "log"))
    lines: list[bytes] = []
    for _ in range(MAX_MESSAGE_BYTES // 60_000 + 2):
        os.write(writing, b"x" * 60_000)
        lines += child.read_lines()
    assert len(lines) == 1
    with pytest.raises(ValueError, match="at most 2000000 are read"):
        decode_message(lines[0])
    os.close(writing)
    child.close()


# ---------------------------------------------------------------------- pictures


def _png(path: Path, width: int, height: int) -> None:
    """A PNG that says it is so large, of a few hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    body = zlib.compress(b"\0" * 10_000)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def _text_bomb(path: Path) -> None:
    Image.new("RGB", (8, 8)).save(path)
    whole = path.read_bytes()
    data = b"k\0\0" + zlib.compress(b"x" * 20_000_000)
    chunk = len(data).to_bytes(4, "big") + b"zTXt" + data + zlib.crc32(b"zTXt" + data).to_bytes(4, "big")
    path.write_bytes(whole[:33] + chunk + whole[33:])


PICTURES: list[tuple[Callable[[Path], None], str]] = [
    (lambda path: _png(path, 60_000, 60_000), "more than 134217728 pixels"),
    (lambda path: _png(path, 12_000, 12_000), "more than 134217728 pixels"),
    (lambda path: _png(path, 300, 300), "no readable image"),
    (_text_bomb, "no readable image"),
    (lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"), "no readable"),
    (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\xff" * 500), "no readable image"),
    (lambda path: path.write_bytes(b""), "no readable image"),
    (lambda path: path.write_bytes(b"II*\0" + b"\xff" * 60), "no readable image"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("case", range(len(PICTURES)))
def test_a_picture_that_is_none_or_too_large_is_refused(case: int, tmp_path: Path) -> None:
    build, message = PICTURES[case]
    path = tmp_path / "picture.png"
    build(path)
    with pytest.raises(InputError, match=message):
        decoding.read_image(str(path), 8, "crop", 8)


def test_formats_that_start_programs_are_not_read() -> None:
    assert set(decoding._FORMATS) == {"BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP"}
