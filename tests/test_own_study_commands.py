"""What a study of one's own tells: commands with its plug-in, its file as its name, why no trial is complete."""

import html
import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
from cli_calls import INLINE

from reports import write_report
from sweep.analysis.shortfalls import explain_no_complete_trial
from sweep.cli import study_run
from sweep.cli.app import run_app
from sweep.config.tables import MODELS
from sweep.records.inputs import digest_plugin
from sweep.records.loading import load_frames

# "above.py" is before "mine.py" in the order of names
PLUGIN = """
import above
from torch import nn
from sweep.config.tables import MODELS, ModelEntry


def build(section, shape):
    return above.build(nn, shape)


MODELS["tiny_of_mine"] = ModelEntry(build=build)
"""
HELPER = """
def build(nn, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.side**2, shape.num_classes))
"""
STUDY = """
name = "own"
question = "?"
trials = 2
sampler = "grid"
confirm = { max_configurations = 0, seeds = 0 }

[base]
model.name = "tiny_of_mine"
data.name = "digits"
data.subset = 48
budget.steps = 2

[space]
"batch.micro" = { choice = [16, 32] }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "above.py").write_text(HELPER)
    (tmp_path / "study of mine.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "above", raising=False)
    monkeypatch.setattr(study_run, "write_report", partial(write_report, formats=()))  # without pictures
    return tmp_path


def run(*arguments: str) -> int:
    words = ["run", "study of mine.toml", "--plugin", "mine.py", *INLINE]
    return run_app([*words, *arguments])


def test_what_a_study_says_to_run_names_its_plugin_and_its_file_names_its_records(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(MODELS, "tiny_of_mine", raising=False)  # of a test that ran before in this process
    assert run_app(["recommend", "study of mine.toml"]) == 2
    assert "no records of study own under runs; `sweep run study of mine.toml` makes them" in capsys.readouterr().err
    assert run_app(["run", "study of mine.toml", *INLINE]) == 2
    assert "unknown model 'tiny_of_mine'" in " ".join(capsys.readouterr().err.split())
    assert run() == 0
    assert list(digest_plugin("mine.py")) == ["mine.py", "above.py"]
    assert load_frames(folder / "runs" / "own").plugin == "mine.py"
    page = (folder / "runs/own/report.html").read_text()
    commands = set(re.findall(r"sweep train [^<\"]*--set seed=\d+(?: --plugin [\w.]+)?", html.unescape(page)))
    assert commands
    assert all(command.endswith(" --plugin mine.py") for command in commands)
    capsys.readouterr()
    assert run_app([*shlex.split(min(commands))[1:], "--json"]) == 0  # as it is printed
    assert json.loads(capsys.readouterr().out)["outcome"] == "complete"
    assert run_app(["recommend", "study of mine.toml", "--json"]) == 0
    advised = re.findall(r"sweep (?:run|train|cost) 'study of mine\.toml'[^\"&]*", capsys.readouterr().out)
    assert advised
    assert all("--plugin mine.py" in command for command in advised)
    assert run_app(["report", "study of mine.toml", "--out", "page", "--json"]) == 0
    capsys.readouterr()
    assert run_app(["export", "study of mine.toml", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_trials"] == 2
    assert run_app(["compare", "study of mine.toml", "own", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["aligned"]) == 2
    assert run_app(["check", "study of mine.toml"]) == 0
    monkeypatch.delitem(MODELS, "tiny_of_mine")  # its records are read without it
    assert run_app(["report", "own", "--out", "again"]) == 0


def test_commands_repeat_what_was_typed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("--set", "name=renamed", "--set", "optimizer.lr=0.02", "--root", "else where", "--trials", "1")
    assert run(*changes) == 0
    assert "sweep check 'study of mine.toml' --set name=renamed --set optimizer.lr=0.02" in capsys.readouterr().err
    assert run_app(["recommend", "renamed", "--root", "else where", "--json"]) == 0
    typed = "'study of mine.toml' --set name=renamed --set optimizer.lr=0.02"
    options = f"--root '{folder / 'else where'}' --on {INLINE[1]} --plugin mine.py"
    more = f"sweep run {typed} {options} --trials 2"
    answer, page = capsys.readouterr().out, html.unescape((folder / "else where/renamed/report.html").read_text())
    for text in (answer, page):
        assert "renamed.toml" not in text
        assert more in text
    again = f"sweep run {typed} --set trials=1 {options} --fresh"
    assert again in page
    assert run_app(shlex.split(more)[1:]) == 0  # as it is printed
    assert len(load_frames(folder / "else where" / "renamed").trials) == 2


def test_a_run_without_a_complete_trial_says_why_it_failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = STUDY.replace("budget.steps = 2", "budget.target = 0.999\nbudget.max_epochs = 1")
    (folder / "study of mine.toml").write_text(text)
    assert run() == 1
    remedy = "choose an easier budget.target, or a longer training (budget.max_epochs)"
    reason = f"No trial is complete (2 target_missed): {remedy}."
    assert reason in capsys.readouterr().err
    assert explain_no_complete_trial(load_frames(folder / "runs" / "own")) == reason
    assert run("--json") == 1
    assert json.loads(capsys.readouterr().out)["no_complete_trial"] == reason
    # the same diagnosis everywhere, and no remedy beside it
    assert run_app(["recommend", "own"]) == 0
    page = (folder / "runs/own/report.html").read_text()
    page = html.unescape(re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", page)).partition('id="findings"')[0]
    for text in (capsys.readouterr().out, page):
        assert reason in text
        assert "validation images; one is" in text
        for other in ("--trials", "narrow the", "run more", "Nothing is confirmed", "not on record: intervals"):
            assert other not in text
