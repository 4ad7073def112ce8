"""The guide for a script of the user: what it finds out, the study that it writes, and what it refuses."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_calls import call_sweep
from script_factory import LINES, write_script

from sweep.config.script import ScriptSection
from sweep.config.study_file import load_study
from sweep.records.loading import load_frames
from sweep.search.ask_script import find_places

# A script that takes its values by flags and knows of the harness only where it reports.
FLAGS = {
    "trial": "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--batch-size', type=int, default=32)\nparser.add_argument('--lr', type=float, default=0.1)\n"
    "parser.add_argument('--wd', type=float, default=0.01)\nparser.add_argument('--seed', type=int, default=0)\n"
    "parser.add_argument('--epochs', type=int, default=6)\nargs = parser.parse_args()",
    "seed": "torch.manual_seed(args.seed)",
    "loader": "loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=args.wd)",
    "steps": "split = 1",
    "begin": "for epoch in range(args.epochs):\n    for i, (a, b) in enumerate(loader):",
    "report": "    sweep.trial().report(val_accuracy=right.float().mean().item(), scores=right)",
}
PLACES = ["--batch-size", "{batch.micro}", "--lr", "{optimizer.lr}", "--wd", "{optimizer.weight_decay}", "--seed",
          "{seed}", "--epochs", "{budget.epochs}"]  # fmt: skip
# One that takes a number of steps, whatever the number of passes.
STEPS = FLAGS | {
    "trial": FLAGS["trial"].replace("'--epochs', type=int, default=6", "'--max-steps', type=int, default=40"),
    "begin": "from itertools import islice\nsteps = 0\nwhile steps < args.max_steps:\n"
    "    for i, (a, b) in enumerate(islice(loader, args.max_steps - steps)):\n        steps += 1",
}


def ask(folder: Path, *options: str, command: str = "python train.py", metric: str = "val_accuracy") -> Any:
    return call_sweep(
        "ask", "asked.toml", "--script", command, "--metric", metric, "--yes", "--on", "cpu", *options, cwd=folder
    )  # fmt: skip


@pytest.mark.parametrize(("printed", "command", "words"), [
    ("  --batch-size N  per step\n  --learning-rate LR, --lr LR\n", "", {
        "batch.micro": ("--batch-size", "{batch.micro}"), "optimizer.lr": ("--learning-rate", "{optimizer.lr}")}),
    ("  --per_device_train_batch_size INT\n  --gradient_accumulation_steps INT\n  --max_steps INT\n", "", {
        "batch.micro": ("--per_device_train_batch_size", "{batch.micro}"),
        "budget.steps": ("--max_steps", "{budget.steps}"),
        "batch.accumulation": ("--gradient_accumulation_steps", "{batch.accumulation}")}),
    ("  --trainer.max_epochs N\n  --data.batch_size N\n", "", {
        "batch.micro": ("--data.batch_size", "{batch.micro}"),
        "budget.epochs": ("--trainer.max_epochs", "{budget.epochs}")}),
    ("  --bs N\n  --seed N\n", "--size {batch.micro}", {"seed": ("--seed", "{seed}")}),
    ("  --batchnorm\n  --lr-min N\n  --no-seed\n", "", {}),
    # those of the command itself
    ("", "--lr 0.1 --bs=8 --other 2", {
        "optimizer.lr": ("--lr", "{optimizer.lr}"), "batch.micro": ("--bs", "{batch.micro}")}),
    ("", "train.batch_size=8", {"batch.micro": ("train.batch_size={batch.micro}",)}),
    ("Powered by Hydra\n== Config ==\noptim:\n  lr: 0.1\n  betas:\n  - 0.9\ndata:\n  batch_size: 32\nseed: 0\n", "", {
        "optimizer.lr": ("optim.lr={optimizer.lr}",), "batch.micro": ("data.batch_size={batch.micro}",),
        "seed": ("seed={seed}",)}),
])  # fmt: skip
def test_the_flags_and_overrides_of_a_script_are_found_in_its_help(
    tmp_path: Path, printed: str, command: str, words: dict[str, tuple[str, ...]]
) -> None:
    tmp_path.joinpath("train.py").write_text(f"import sys  # argparse hydra\nprint({printed!r})\n")
    script = ScriptSection(command=f"python train.py {command}", folder=str(tmp_path), metric="loss")
    assert find_places(script).words == words


class Written(NamedTuple):
    """What the study holds: the places after the script's name, the fixed values, the batch sizes, and its own."""

    places: list[str]
    base: dict[str, Any]
    batches: tuple[int, ...]
    own: int


@pytest.mark.parametrize(("changes", "command", "expected"), [
    # 800 samples, and at least 4 steps of a pass over them
    (FLAGS, "python train.py",
     Written(PLACES, {"optimizer.weight_decay": 0.01, "budget.epochs": 6}, (8, 16, 32, 64, 128), 32)),
    # what is given in the command is the script's own
    (FLAGS, "python train.py --batch-size 64 --epochs 3",
     Written([*PLACES[:2], *PLACES[-2:], *PLACES[2:-2]], {"optimizer.weight_decay": 0.01, "budget.epochs": 3},
             (16, 32, 64, 128), 64)),
    # steps become samples, so that all batch sizes see the same data
    (STEPS, "python train.py", Written([*PLACES[:-2], "--max-steps", "{budget.steps}"],
     {"optimizer.weight_decay": 0.01, "budget.samples": 40 * 32}, (8, 16, 32, 64, 128), 32)),
    # a script that reads its values has no place in its command
    ({}, "python train.py",
     Written([], {"batch.accumulation": 1, "optimizer.weight_decay": 0.0}, (4, 8, 16, 32, 64), 16)),
    ({"begin": LINES["begin"].replace("range(6)", "range(sweep.trial(epochs=3).epochs)")}, "python train.py",
     Written([], {"batch.accumulation": 1, "optimizer.weight_decay": 0.0, "budget.epochs": 3}, (4, 8, 16, 32, 64), 16)),
], ids=["flags", "own_flags", "steps", "reads", "reads_epochs"])  # fmt: skip
def test_a_study_is_written_from_what_a_script_takes_and_did(
    tmp_path: Path, changes: dict[str, str], command: str, expected: Written
) -> None:
    write_script(tmp_path, **changes)
    asked = ask(tmp_path, command=command)
    assert asked.returncode == 0, asked.stderr
    written = load_study(tmp_path / "asked.toml")
    assert written.script is not None
    assert list(written.script.command) == ["python", "train.py", *expected.places]
    assert written.base == expected.base
    assert written.space["batch.micro"].grid_values == expected.batches
    assert written.space["optimizer.lr"].extremes() == (0.013, 0.8)
    trial = written.command(written.config({"batch.micro": expected.batches[0], "optimizer.lr": 0.1}), "")
    assert trial["values"]["budget.steps"] == (160 if "budget.samples" in expected.base else None)
    assert written.first == ({"batch.micro": expected.own, "optimizer.lr": pytest.approx(0.1)},)


@pytest.mark.parametrize(("changes", "options", "words"), [
    (FLAGS | {"report": "    print(right)"}, {}, ["reports no val_accuracy", "report(val_accuracy=...)"]),
    (FLAGS, {"metric": "val_loss:min"}, ["the study measures val_loss"]),
    (FLAGS | {"loader": "loader = DataLoader(train, batch_size=32, shuffle=True)"}, {},
     ["does not follow", "batch size: asked for 8, observed 32", "{batch.micro}"]),
    # its own rate is in the middle of the range that is searched
    (FLAGS | {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"}, {},
     ["learning rate: asked for 0.0", "observed 0.1", "{optimizer.lr}"]),
    (FLAGS | {"trial": FLAGS["trial"].replace("--batch-size", "--rows").replace(
        "parse_args()", "parse_args(); args.batch_size = args.rows")}, {},
     ["takes no batch size", "{batch.micro}", "sweep.trial(batch_size=32)"]),
    (FLAGS | {"loader": "loader = list(zip(x[:800].split(args.batch_size), y[:800].split(args.batch_size)))"}, {},
     ["no DataLoader", "sweep.trial().batches("]),
    # all that it lacks is said at once
    (FLAGS | {"trial": "from types import SimpleNamespace\nargs = SimpleNamespace(batch_size=32, lr=0.1, wd=0.0, "
              "seed=0, epochs=2)", "report": "",
              "loader": "loader = list(zip(x[:800].split(args.batch_size), y[:800].split(args.batch_size)))"}, {},
     ["no DataLoader", "reports no val_accuracy", "takes no batch size"]),
    (FLAGS | {"loss": "        raise RuntimeError('no data')"}, {}, ["no data"]),
    (FLAGS, {"command": "python absent.py"}, ["absent.py"]),
    (FLAGS, {"metric": "val_accuracy:up"}, [":min or :max"]),
], ids=["no_report", "another_metric", "fixed_batch", "fixed_rate", "other_flag", "no_loader", "nothing", "fails",
        "no_file", "direction"])  # fmt: skip
def test_what_cannot_be_found_out_is_said_with_the_line_to_add(
    tmp_path: Path, changes: dict[str, str], options: dict[str, str], words: list[str]
) -> None:
    write_script(tmp_path, **changes)
    asked = ask(tmp_path, **options)
    assert asked.returncode == 2
    assert all(word in asked.stderr for word in words), asked.stderr
    assert not list(tmp_path.glob("*.toml"))


def test_what_a_training_that_is_cut_did_not_report_is_said_with_what_else_it_lacks(tmp_path: Path) -> None:
    trial = (
        "import time\nfrom types import SimpleNamespace\nargs = SimpleNamespace(batch_size=32, lr=0.1, wd=0.0, seed=0)"
    )
    begin = "while True:\n    for i, (a, b) in enumerate(loader):\n        time.sleep(0.05)"
    write_script(tmp_path, **(FLAGS | {"trial": trial, "begin": begin, "report": ""}))
    asked = ask(tmp_path, "--budget", "20s")
    assert asked.returncode == 2
    assert all(word in asked.stderr for word in ("takes no batch size", "reports no val_accuracy within 4 s"))


@pytest.mark.parametrize("script", [FLAGS, STEPS], ids=["epochs", "steps"])
def test_too_short_a_budget_is_refused_before_the_checks_start_the_script(
    tmp_path: Path, script: dict[str, str]
) -> None:
    # six starts take more than is left of the budget after the first one and the time for the report
    slow = f"import time\ntime.sleep(5)\nopen('starts', 'a').write('x')\n{LINES['data']}"
    write_script(tmp_path, **(script | {"data": slow}))
    asked = ask(tmp_path, "--budget", "45s")
    assert asked.returncode == 2
    assert "Give --budget" in asked.stderr
    assert (tmp_path / "starts").read_text() == "x"


def test_a_script_without_a_seed_or_a_rate_gets_a_study_that_says_so(tmp_path: Path) -> None:
    trial = FLAGS["trial"].replace("--lr", "--step-length").replace("--seed", "--chance").replace(
        "parse_args()", "parse_args(); args.lr, args.seed = args.step_length, args.chance")  # fmt: skip
    write_script(tmp_path, **(FLAGS | {"trial": trial}))
    asked = ask(tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert all(word in asked.stderr for word in ("no learning rate", "{optimizer.lr}", "no seed", "{seed}"))
    assert "does not use its seed" not in asked.stderr  # it was not given one
    assert list(load_study(tmp_path / "asked.toml").space) == ["batch.micro"]


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_a_script_is_answered_within_a_budget(tmp_path: Path) -> None:
    write_script(tmp_path, **FLAGS)
    began = time.monotonic()
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True)
    # the smallest question takes about 20 trainings, most of whose time is the start of a process
    budget = max(60.0, 30 * (time.monotonic() - began))
    asked = ask(tmp_path, "--budget", f"{budget:.0f}s", "--batch", "16", "--json")
    if named := re.search(r"Give --budget (\w+) or more", asked.stderr):  # other work slowed the start meanwhile
        asked = ask(tmp_path, "--budget", named[1], "--batch", "16", "--json")
    assert asked.returncode == 0, asked.stderr
    study, document = load_study(tmp_path / "asked.toml"), json.loads(asked.stdout)
    frames = load_frames(tmp_path / "runs" / "asked")
    assert {16} < set(study.space["batch.micro"].grid_values or ()) == set(frames.trials["config.batch.micro"])
    said = [int(size) for text in document["left_out"] for size in re.findall(r"(?<!= )\b\d+", text)]
    assert {*said, *(study.space["batch.micro"].grid_values or ())} == {8, 16, 32, 64, 128}
    first = frames.trials.set_index("number").loc[0]
    assert (first["config.batch.micro"], first["config.optimizer.lr"]) == (32, pytest.approx(0.1))
    assert {"search", "confirm"} == set(frames.trials["phase"])
    assert document["answer"]["batch_size"]["named"]["config"]["batch.micro"] in study.space["batch.micro"].grid_values
