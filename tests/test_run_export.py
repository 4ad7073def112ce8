"""Studies as runs of other programs: what goes out comes in again equal, and the other program reads it."""

import dataclasses
import importlib
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sweep.analysis.recommendation import recommend
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.foreign.run_export import export_runs
from sweep.records.frames.frames import load_frames
from sweep.records.frames.study_frames import Frames

GALLERY = Path(__file__).parent.parent / "docs" / "gallery" / "quickstart"
PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboard", "wandb-offline": "wandb"}
_REASON = "the extra [export] is not installed"


@pytest.fixture(scope="module")
def study() -> Frames:
    """Six trials of a recorded study, of both phases."""
    frames = load_frames(GALLERY, evaluations=True)
    numbers = [*frames.trials["number"].head(3), *frames.trials["number"].tail(3)]
    assert frames.evaluations is not None
    return dataclasses.replace(
        frames,
        trials=frames.trials[frames.trials["number"].isin(numbers)].reset_index(drop=True),
        evaluations=frames.evaluations[frames.evaluations["number"].isin(numbers)].reset_index(drop=True),
    )


@pytest.fixture(scope="module")
def exported(study: Frames, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the study as runs of a format, written once."""
    base = tmp_path_factory.mktemp("exported")

    def export(format: str) -> Path:
        pytest.importorskip(PACKAGES[format], reason=_REASON)
        if not (base / format).exists():
            export_runs(study, base / format, format)
        return base / format

    return export


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", ["mlflow", "tensorboard"])
def test_a_study_comes_back_equal(format: str, study: Frames, exported: Callable[[str], Path]) -> None:
    found = load_foreign_frames(exported(format))
    assert found.evaluations is not None
    assert study.evaluations is not None
    order = ["study", "number"]
    expected = study.trials.sort_values(order).reset_index(drop=True)
    pd.testing.assert_frame_equal(found.trials, expected, check_exact=True)
    curves = study.evaluations.sort_values([*order, "step"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(found.evaluations, curves, check_exact=True)
    assert found.source is not None
    assert "Not carried by this format: attempts, probes" in found.source.limits[0]
    assert "the answer may be another" in found.source.limits[1]
    assert recommend(found).validation.num_images is None, "which images were got right is not carried"


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written(study: Frames, exported: Callable[[str], Path]) -> None:
    out = exported("mlflow")
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=f"sqlite:///{out}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
    by_number = {int(run.data.tags["batch_sweep.number"]): run for run in runs}
    for row in study.trials.to_dict("records"):
        run = by_number[row["number"]]
        assert run.data.metrics["val_accuracy"] == row["val_accuracy"]
        assert run.data.params["optimizer.lr"] == str(row["config.optimizer.lr"])
        assert run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written(study: Frames, exported: Callable[[str], Path]) -> None:
    out = exported("tensorboard")
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    row = study.trials.iloc[0]
    events = module.EventAccumulator(str(out / f"trial-{row['number']:05d}")).Reload()
    tensor = importlib.import_module("tensorboard.util.tensor_util")
    values = [tensor.make_ndarray(event.tensor_proto).item() for event in events.Tensors("val_accuracy")]
    assert values == [row["val_accuracy"]]
    assert study.evaluations is not None
    curve = study.evaluations[study.evaluations["number"] == row["number"]]
    assert [event.step for event in events.Tensors("evaluation/val_accuracy")] == curve["step"].tolist()


def read_wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a file of W&B, which are in the format of LevelDB's log: blocks of 32 KiB, each part with a
    checksum, its length and its kind (1 whole, 2 first, 3 middle, 4 last)."""
    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        rest = 32_768 - place % 32_768
        if rest < 7:
            place += rest
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_what_was_written(study: Frames, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason=_REASON)
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    export_runs(dataclasses.replace(study, trials=study.trials.head(1)), tmp_path / "out", "wandb-offline")
    (path,) = (tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb")
    config, summary, steps = {}, {}, 0
    for content in read_wandb_records(path):
        record = records.Record.FromString(content)
        config |= {each.key: each.value_json for each in [*record.run.config.update, *record.config.update]}
        summary |= {each.key or each.nested_key[0]: each.value_json for each in record.summary.update}
        steps += record.HasField("history")
    row = study.trials.iloc[0]
    assert float(summary["val_accuracy"]) == row["val_accuracy"]
    assert float(config["optimizer.lr"]) == row["config.optimizer.lr"]
    assert study.evaluations is not None
    assert steps == (study.evaluations["number"] == row["number"]).sum()


def test_a_folder_with_files_is_refused(study: Frames, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="it holds files; give a new or empty folder"):
        export_runs(study, tmp_path, "mlflow")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_formats_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["export", str(GALLERY), str(tmp_path / "out"), "--to", "xlsx"]) == 2
    assert "Known: csv, mlflow, parquet, tensorboard, wandb-offline." in capsys.readouterr().err


def test_a_missing_package_is_named(study: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(InputError, match=r"requires the package tensorboard; install the extra: pip install 'batch-"):
        export_runs(study, tmp_path / "out", "tensorboard")
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"
