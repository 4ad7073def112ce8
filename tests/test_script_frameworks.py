"""Training scripts of several frameworks, all of them correct: a trial sees their batch size and has no complaint. And
the pages on them: both scripts of a page run as printed, and differ by few lines."""

import os
import shutil
import subprocess
import sys
from difflib import ndiff
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from guide_blocks import DOCS, ROOT, read_blocks
from scripts.shapes import draw_shapes

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study, load_study
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, Message, ScriptCommand, TrialTask
from sweep.records.quality import MEANINGS, TIME_DOUBTS
from sweep.script.runner import run_script
from sweep.training.operators import DECLARED

SCRIPTS = Path(__file__).parent / "scripts"
# What a busy machine and a training of a second bring about, and nothing that the script does.
_OF_TIMES = {*TIME_DOUBTS, "few_steps", "spread", "drift", "processor_wait", "busy_host"}
_GPT2, _BERT, _VIT = (f"transformer.py --model {name} --out {{folder}}" for name in ("gpt2", "bert", "vit"))
# Ultralytics' validation calls an operator that is missing beside a CPU build of torch.
_DETECTOR = ("run_detector.py " if DECLARED else "") + "detector.py --data {folder}/shapes.yaml --out {folder}"
_RANKS = "-m torch.distributed.run --standalone --nproc-per-node {distributed.world_size} ranks.py"
_LICENSE = "its license is AGPL-3.0, so that nothing here installs it but `make test-scripts`"


def plain(kind: str) -> str:
    return (
        f"plain.py --kind {kind} --batch-size {{batch.micro}} --accumulation {{batch.accumulation}} "
        "--lr {optimizer.lr} --weight-decay {optimizer.weight_decay}"
    )


class Script(NamedTuple):
    """A script, what it is asked, and how many steps that makes."""

    arguments: str
    micro: int
    accumulation: int
    steps: int
    needs: str = ""
    rate: float = 0.01
    metric: str = "val_loss"
    ranks: int = 1
    epochs: int = 3


# 900 rows in batches of 32 are 28 and one of 4; with 4 of them in a step, 7 steps and one of 4 + 0.
CASES = {
    **{kind: Script(plain(kind), 32, 1, 87) for kind in (
        "plain", "workers", "made_anew", "stream", "inference_mode", "autocast", "schedule", "two_optimizers",
        "evaluates_within", "evaluates_first", "evaluates_training_data", "without_loader",
    )},
    "drop_last": Script(plain("drop_last"), 32, 1, 84),
    "whole pass": Script(plain("plain"), 900, 1, 3),
    **{f"{kind}, accumulated": Script(plain(kind), 32, 4, 24) for kind in (
        "plain", "zero_first", "zero_before", "stream", "made_anew", "workers", "evaluates_training_data",
    )},
    "drop_last, accumulated": Script(plain("drop_last"), 32, 4, 21),
    "drop_rest, accumulated": Script(plain("drop_rest"), 32, 4, 21),
    "generator": Script("generator.py", 16, 1, 40, epochs=0),
    "generator, accumulated": Script("generator.py", 16, 3, 40, epochs=0),
    "ranks": Script(_RANKS, 16, 1, 100, ranks=2, epochs=4),
    "accelerate": Script("accelerated.py", 32, 1, 87, "accelerate"),
    "accelerate, accumulated": Script("accelerated.py", 32, 4, 24, "accelerate"),
    "transformers, GPT-2": Script(_GPT2, 8, 4, 30, "transformers"),
    "transformers, BERT": Script(_BERT, 16, 1, 57, "transformers"),
    "transformers, ViT": Script(_VIT, 8, 2, 57, "transformers"),
    "lightning": Script("lit.py", 32, 1, 87, "lightning"),
    "lightning, accumulated": Script("lit.py", 32, 2, 45, "lightning"),
    "timm": Script("images.py", 16, 1, 24, "timm", metric="val_accuracy", epochs=4),
    "ultralytics": Script(_DETECTOR, 8, 1, 12, "ultralytics", metric="mAP50-95"),
}  # fmt: skip
_QUICK = {"plain", "plain, accumulated", "generator"}


def need(package: str) -> None:
    if package and not find_spec(package):
        reason = _LICENSE if package == "ultralytics" else "in the extra `scripts`; run `make test-scripts`"
        pytest.skip(f"{package} is not installed: {reason}")


def run_trial(
    spec: StudySpec, values: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Ending, list[Message]]:
    for name, value in {
        "YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{ROOT}:{SCRIPTS}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    config = spec.config(values)
    command = ScriptCommand(**spec.command(config, str(folder)))
    *messages, ending = run_script(TrialTask(number=0, config=config, script=command, checkpoint_dir=str(folder)))
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.error) == ("complete", "")
    return ending, messages


@pytest.mark.parametrize("name", [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.wide) for name in CASES
])  # fmt: skip
def test_a_correct_script_is_seen_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = CASES[name]
    need(script.needs)
    if name == "ultralytics":
        draw_shapes(tmp_path)
    base = {"batch.accumulation": script.accumulation, "optimizer.lr": script.rate}
    base |= {"optimizer.weight_decay": 0.002} if "{optimizer.weight_decay}" in script.arguments else {}
    base |= {"distributed.world_size": script.ranks} if script.ranks > 1 else {}
    base |= {"budget.steps": script.steps} if script.arguments == "generator.py" else {}
    about = {"command": f"python {script.arguments}", "folder": str(SCRIPTS), "metric": script.metric}
    space = {"batch.micro": {"choice": [script.micro, 2 * script.micro]}}
    spec = build_study({"name": "own", "trials": 1, "script": about, "base": base, "space": space}, "own")

    ending, messages = run_trial(spec, {"batch.micro": script.micro}, tmp_path, monkeypatch)

    measured = ending.measurements
    whole = script.micro * script.accumulation * script.ranks
    assert set(ending.quality_flags) <= _OF_TIMES & MEANINGS.keys()
    assert measured["observed_batch_size"] == whole
    assert measured["num_steps"] == script.steps
    assert measured["observed_lr"] == pytest.approx(script.rate, rel=0.01)
    assert measured.get("num_epochs", 0) == script.epochs
    assert measured["peak_memory_bytes"] > 0
    evaluations = [message for message in messages if isinstance(message, Evaluation)]
    assert (evaluations[-1].step, evaluations[-1].samples) == (script.steps, script.steps * whole)
    if "{optimizer.weight_decay}" in script.arguments:
        assert measured["observed_weight_decay"] == 0.002
    if script.arguments == "generator.py":
        assert measured["tokens_per_second"] == pytest.approx(32 * measured["images_per_second"], rel=0.1)


# ---------------------------------------------------------------------- the pages


class Page(NamedTuple):
    """A page: the changed lines that it may have, and the values of its trial, with the steps that they make."""

    needs: str
    most_lines: int
    micro: int
    steps: int
    batch: int


GUIDES = {
    "plain-pytorch": Page("", 4, 64, 96, 64),
    "hf-trainer": Page("transformers", 4, 8, 26, 16),
    "lightning": Page("lightning", 6, 64, 14, 128),
    "ultralytics": Page("ultralytics", 4, 4, 16, 4),
}


def write_page(name: str, folder: Path) -> dict[str, str]:
    """The files of the page, written and by name."""
    files = {block.title: block.text for block in read_blocks(DOCS / f"guides/{name}.md") if block.title}
    for title, text in files.items():
        (folder / title).write_text(text)
    if name == "ultralytics":
        draw_shapes(folder)
        if DECLARED:
            shutil.copy(SCRIPTS / "run_detector.py", folder)
            (study,) = folder.glob("*.toml")
            study.write_text(study.read_text().replace("python train", "python run_detector.py train"))
    return files


def run_alone(script: str, folder: Path) -> str:
    launcher = ["run_detector.py"] if (folder / "run_detector.py").exists() else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "1"}
    opening = [] if launcher else ["-c", f"import sweep.training.operators, runpy; runpy.run_path('{script}')"]
    command = [sys.executable, *opening, *launcher, *([] if opening else [script])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def count_changes(before: str, after: str) -> int:
    lines = list(ndiff(before.splitlines(), after.splitlines()))
    return max(sum(line.startswith(f"{sign} ") and bool(line[2:].strip()) for line in lines) for sign in "+-")


@pytest.mark.wide
@pytest.mark.parametrize("name", GUIDES)
def test_the_scripts_of_a_page_run_as_they_are_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = GUIDES[name]
    need(page.needs)
    write_page(name, tmp_path)
    (study,) = tmp_path.glob("*.toml")
    values = {"batch.micro": page.micro, "optimizer.lr": 0.007}
    ending, _ = run_trial(load_study(study), values, tmp_path / "trial", monkeypatch)
    assert set(ending.quality_flags) <= _OF_TIMES
    assert ending.measurements["observed_batch_size"] == page.batch
    assert ending.measurements["observed_lr"] == 0.007
    assert ending.measurements["num_steps"] == page.steps
    run_alone("before.py", tmp_path)
    run_alone("train.py", tmp_path)  # outside of a study


@pytest.mark.parametrize("name", GUIDES)
def test_few_lines_of_a_script_change(name: str, tmp_path: Path) -> None:
    files = write_page(name, tmp_path)
    changed = count_changes(files["before.py"], files["train.py"])
    page = (DOCS / f"guides/{name}.md").read_text("utf-8")
    assert f"After, with {changed} changed lines:" in page
    assert changed <= GUIDES[name].most_lines
    assert len(page.splitlines()) <= 70


@pytest.mark.wide
def test_a_script_with_flags_needs_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_page("plain-pytorch", tmp_path)
    page = (DOCS / "guides/scripts.md").read_text("utf-8")
    flags = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "for name, kind in (('--batch-size', int), ('--lr', float), ('--seed', int)):\n"
        "    parser.add_argument(name, type=kind)\n"
        "args = parser.parse_args()\nbatch_size, lr, seed = args.batch_size, args.lr, args.seed"
    )
    text = files["before.py"].replace("batch_size, lr, seed = 32, 0.1, 0", flags)
    command, first, last = (next(part for part in page.split("`") if part.startswith(words)) for words in (
        'command = "python train.py --', "import sweep", "sweep.trial().report",
    ))  # fmt: skip
    (tmp_path / "train.py").write_text(f"{first}\n{text}    {last}\n")
    (tmp_path / "plain.toml").write_text(files["plain.toml"].replace('command = "python train.py"', command))
    ending, messages = run_trial(
        load_study(tmp_path / "plain.toml"), {"batch.micro": 16, "optimizer.lr": 0.1}, tmp_path, monkeypatch
    )
    assert set(ending.quality_flags) <= _OF_TIMES
    assert ending.measurements["observed_batch_size"] == 16
    assert ending.correct_images.startswith("1000:")
    assert sum(isinstance(message, Evaluation) for message in messages) == 3


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_the_study_of_the_page_on_plain_scripts_runs_and_is_read_without_its_script(tmp_path: Path) -> None:
    def sweep(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "sweep.cli", *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]

    write_page("plain-pytorch", tmp_path)
    sweep("run", "plain.toml", "--trials", "2", "--set", "confirm.max_configurations=0", "--on", "cpu")
    trials = load_frames(tmp_path / "runs/plain").trials
    assert trials["outcome"].tolist() == ["complete"] * 2
    assert trials["observed_batch_size"].tolist() == trials["config.batch.micro"].tolist()
    # who reads the records of a study does not run its command
    (tmp_path / "train.py").write_text("from pathlib import Path\nPath('was_run').touch()\n")
    sweep("report", "plain")
    sweep("recommend", "plain")
    assert not (tmp_path / "was_run").exists()
