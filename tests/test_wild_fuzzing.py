"""Damaged files before each reader: it reads them or refuses them in words, returns, and writes nothing beside them.

A hundred files a reader, always the same; ``PROPERTY_CASES=2000`` tries that many.
"""

import contextlib
import importlib
import io
import json
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from image_folder_factory import make_image
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna_storages import open_storage
from PIL import Image

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.foreign.column_map import write_draft
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.foreign.imported import write_imported
from sweep.foreign.sources import read_foreign_table
from sweep.training.data.sources import load_splits, look_at_data

CASES = int(os.environ.get("PROPERTY_CASES") or 100)
LIMIT_SECONDS = 60  # far above what one takes
ROWS = [
    {"Name": f"run-{number}", "State": "finished", "batch_size": 32 * (1 + number % 3), "lr": 0.1, "seed": number // 3,
     "val_acc": 0.9 + number / 100, "note": "a, \"b\"\n\u2028", "config": {"lr": 0.1, "inner": {"k": None}}}
    for number in range(9)
]  # fmt: skip
USUAL = {
    "batch.global": ("batch_size", "params_batch_size", "params.batch_size", "hparams.batch_size"),
    "optimizer.lr": ("lr", "params_lr", "params.lr", "hparams.lr"), "seed": ("seed",),
    "val_accuracy": ("val_acc", "value", "metrics.acc", "acc"),
}  # fmt: skip
# What damage leaves behind and what people paste: they are put over, into and between the bytes of a file.
PIECES = (
    b"\0", b"\xff", b"\xe2\x80\xa8", b"\n", b"\r", b'"', b"'", b",", b";", b"{", b"}", b"[", b"]", b"\\", b"nan",
    b"inf", b"-1", b"0", b"1e999", b"9" * 30, b"null", b"true", b"np.float64(1)", b"{'a': 1}", b"=1+1", b"\xef\xbb\xbf",
)  # fmt: skip


def write_study(storage: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    for number in range(4):
        trial = study.ask()
        trial.suggest_categorical("batch_size", [32, 64])
        trial.suggest_float("lr", 0.1, 1.0)
        trial.report(0.5, step=number)
        study.tell(trial, 0.9)


def write_journal(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        write_study(JournalStorage(JournalFileBackend(str(path))))


def write_database(path: Path) -> None:
    storage = open_storage(path)
    write_study(storage)
    storage.remove_session()
    storage.engine.dispose()


def write_mlruns(path: Path) -> None:
    pytest.importorskip("mlflow", reason="the package is not installed: make test-import")
    experiment = path / "123"
    files = {"meta.yaml": "experiment_id: '123'\nname: exp\nartifact_location: ''\nlifecycle_stage: active\n"}
    for number in range(3):
        files[f"r{number}/meta.yaml"] = (
            f"run_id: r{number}\nrun_uuid: r{number}\nstart_time: {number}\nexperiment_id: '123'\nuser_id: u\n"
            "status: 3\nend_time: 9\nlifecycle_stage: active\nartifact_uri: ''\n"
        )
        files |= {f"r{number}/params/batch_size": "32", f"r{number}/metrics/acc": "1 0.5 0\n2 0.9 1\n"}
    for name, text in files.items():
        (experiment / name).parent.mkdir(parents=True, exist_ok=True)
        (experiment / name).write_text(text)


def write_events(path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package is not installed: make test-import")
    with importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(path)) as writer:
        writer.add_hparams({"batch_size": 32, "lr": 0.1}, {"acc": 0.9}, run_name="run")


MAP = """name = "mine"
own_seeds = true
ignored = ["note"]
[columns]
"batch.global" = "batch_size"
val_accuracy = { column = "val_acc", unit = "fraction" }
outcome = "State"
[constants]
"model.name" = "resnet18"
[outcomes]
finished = "complete"
"""


def write_study_of_records(path: Path) -> None:
    path.mkdir()
    columns = {"batch.global": "batch_size", "val_accuracy": {"column": "val_acc", "unit": "fraction"}}
    write_imported(load_foreign_frames(pd.DataFrame(ROWS), {"columns": columns, "own_seeds": True}), path)


READERS: dict[str, Callable[[Path], object]] = {
    "runs.csv": lambda path: pd.DataFrame(ROWS).to_csv(path, index=False),
    "runs.json": lambda path: path.write_text(json.dumps(ROWS)),
    "runs.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, ROWS))),
    "runs.parquet": lambda path: pd.DataFrame(ROWS).to_parquet(path),
    "study.log": write_journal,
    "study.db": write_database,
    "mlruns": write_mlruns,
    "events": write_events,
    "map.toml": lambda path: path.write_text(MAP),
    "imported": write_study_of_records,
}


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises ``TimeoutError`` in what hangs."""

    def refuse(*_: object) -> None:
        raise TimeoutError(f"not finished after {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, refuse)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damage(content: bytes, random: random.Random) -> bytes:
    """``content`` with one to four faults: cut, overwritten, repeated, removed or added to."""
    data = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(data) + 1), random.choice((1, 2, 8, 64, 512))
        match random.randrange(6):
            case 0:
                del data[at:]
            case 1:
                data[at : at + 1] = random.randbytes(1)
            case 2:
                data[at:at] = random.choice(PIECES)
            case 3:
                piece = random.choice(PIECES)
                data[at : at + len(piece)] = piece
            case 4:
                del data[at : at + size]
            case 5:
                data[at:at] = data[at : at + size]
    return bytes(data)


def list_contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(place: Path) -> None:
    """All that a user does with a file: the draft of its map, then the frames."""
    if place.name in {"map.toml", "imported"}:
        is_map = place.name == "map.toml"
        load_foreign_frames(pd.DataFrame(ROWS) if is_map else place, place if is_map else None)
        return
    names = read_foreign_table(place).names
    write_draft(names)
    found = {key: next((name for name in usual if name in names), "") for key, usual in USUAL.items()}
    columns: dict[str, Any] = {key: name for key, name in found.items() if name}
    if "val_accuracy" in columns:
        columns["val_accuracy"] = {"column": columns["val_accuracy"], "unit": "fraction"}
    load_foreign_frames(place, {"columns": columns, "own_seeds": "seed" not in columns})


def check(act: Callable[[], object], folder: Path) -> bool:
    """Whether ``act`` takes the files in ``folder``; they are refused in words otherwise, and stay as they are."""
    before, words = list_contents(folder), ""
    try:
        with limited():
            act()
    except InputError as error:
        words = str(error)
        assert len(words) > 10
        assert "Traceback" not in words
    assert list_contents(folder) == before, "a reader writes nothing"
    return not words


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", READERS)
def test_damaged_records_are_read_or_refused(name: str, tmp_path: Path) -> None:
    place = tmp_path / "wild" / name
    place.parent.mkdir()
    READERS[name](place)
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    generator, num_taken = random.Random(36), 0
    assert check(lambda: read(place), tmp_path / "wild"), "the file as it is written is read"
    for _ in range(CASES):
        file = generator.choice(files)
        content = file.read_bytes()
        file.write_bytes(damage(content, generator))
        num_taken += check(lambda: read(place), tmp_path / "wild")
        file.write_bytes(content)
    assert num_taken < CASES, "some damage is seen"


KINDS = {"png": ".png", "jpeg": ".jpg", "gif in a png": ".png", "tiff": ".tif", "webp": ".webp", "bmp": ".bmp"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(4 * 3600)
def test_damaged_images_are_used_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            (folder / name / f"{number}.png").write_bytes(make_image("rgb", number + 4 * (name == "b")))
    originals = {suffix: make_image("rotated" if suffix == ".jpg" else "rgb", 9, suffix=suffix)
                 for suffix in KINDS.values()}  # fmt: skip
    with io.BytesIO() as buffer:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(buffer, "GIF")
        originals[".PNG"] = buffer.getvalue()
    generator, num_taken = random.Random(36), 0
    for _ in range(CASES):
        suffix = generator.choice(sorted(originals))
        file = folder / "a" / f"x{suffix}"
        file.write_bytes(damage(originals[suffix], generator))
        section = DataSection(name="imagefolder", root=str(folder), image_size=8,
                              on_bad_image=generator.choice(("refuse", "skip")))  # fmt: skip

        def use(section: DataSection = section) -> None:
            found, splits = look_at_data(section), load_splits(section)
            assert (found.num_train, found.num_val) == (len(splits.train), len(splits.validation))
            splits.train.read(np.arange(len(splits.train)))

        num_taken += check(use, folder)
        file.unlink()
    assert 0 < num_taken < CASES
