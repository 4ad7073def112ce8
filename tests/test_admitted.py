"""A configuration that its data set does not admit is refused by each command, with the key, before anything runs."""

from pathlib import Path

import pytest
from cli_calls import INLINE
from image_folder_factory import list_images, write_files

from sweep.cli.app import run_app

FOLDER = {"data.name": "imagefolder", "data.root": "images", "data.image_size": 8}
CASES: dict[str, tuple[dict[str, object], str]] = {
    "a share of a set with its own validation split": ({"data.name": "synthetic", "data.validation_share": 0.3},
     "data.validation_share = 0.3, but synthetic has a validation split of its own"),
    "a share of a folder with its own validation split": (FOLDER | {"data.validation_share": 0.3},
     "data.validation_share = 0.3, but imagefolder has a validation split of its own"),
    "a size of a set with its own": ({"data.image_size": 9}, "data.image_size = 9 holds for imagefolder and synthetic"),
    "more images than there are": ({"data.subset": 5000}, "the train split of digits has 1300 images"),
    "more images than a folder has": (FOLDER | {"data.subset": 50}, "the train split of imagefolder has 34 images"),
    "a folder of a set that reads none": ({"data.root": "images"}, "the data set 'digits' reads no folder"),
    "no folder": ({"data.name": "imagefolder", "data.root": "nowhere"}, "data.root = 'nowhere' is not a folder"),
    "patches that do not divide the images": ({"model.name": "vit_micro", "model.patch_size": 3},
     "model.patch_size = 3, but the images have 8 pixels a side"),
    "images that are too small": ({"model.name": "resnet50", "data.name": "synthetic", "data.image_size": 4},
     "requires images of 8 or more pixels"),
    "more stages than there are": ({"model.freeze_stages": 20}, "resnet8 has 3 stages"),
}  # fmt: skip
COMMANDS = {
    "train": ["train"], "run": ["run", "study.toml", *INLINE], "dry run": ["run", "study.toml", "--dry-run"],
    "check": ["check", "study.toml"], "forecast": ["cost"], "measurement": ["cost", "--measure", "--one"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path / "images", list_images({"train/a": 20, "train/b": 20, "val/a": 6, "val/b": 6}))
    (tmp_path / "study.toml").write_text('name = "study"\n[space]\n"batch.micro" = { choice = [4, 8] }\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_sets(changes: dict[str, object]) -> list[str]:
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", CASES)
def test_what_a_data_set_does_not_admit_is_refused(
    command: str, case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, message = CASES[case]
    assert run_app([*COMMANDS[command], *list_sets(changes)]) == 2
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert shown.out == ""
    assert not list(folder.glob("runs/*/study.sqlite"))


@pytest.mark.parametrize("command", ["train", "run", "dry run", "forecast"])
@pytest.mark.parametrize(("changes", "message"), [
    ({"precision.dtype": "tf32"}, "tf32"), ({"precision.cuda_graphs": "true"}, "cuda_graphs"),
    ({"model.norm": "sync", "distributed.world_size": 2}, "over several ranks requires NVIDIA GPUs"),
])  # fmt: skip
def test_what_a_processor_does_not_have_is_refused(
    command: str, changes: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on = ["--on", "cpu"] if command in {"train", "forecast"} else []
    assert run_app([*COMMANDS[command], *on, *list_sets(changes)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert run_app([*COMMANDS["check"], *list_sets(changes)]) == 0  # another machine may run it


def test_the_corners_of_a_space_are_looked_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = '[space]\n"precision.dtype" = { choice = ["fp32", "tf32"] }\n"model.patch_size" = { choice = [2, 3] }\n'
    (folder / "study.toml").write_text(f'name = "study"\n{space}[base]\nmodel.name = "vit_micro"\n')
    for command, message in (("run", "tf32"), ("check", "model.patch_size = 3")):
        assert run_app(COMMANDS[command]) == 2
        assert message in capsys.readouterr().err
