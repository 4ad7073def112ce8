"""``sweep claims`` as a user meets it."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from records_factory import add_trials, make_spec, make_store

from sweep.analysis.claim_table import CLAIMS
from sweep.cli.app import run_app
from sweep.config.study_file import load_study


def test_all_claims_are_listed_with_what_a_study_requires(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["claims", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == [claim.name for claim in CLAIMS]
    warmup = next(each for each in listed if each["name"] == "warmup_needed")
    assert (warmup["varies"], warmup["claimed"], warmup["matters"]) == (["schedule.warmup"], [0.005, None], 0.005)
    assert (warmup["repetitions"], warmup["trainings"]) == (26, 52)
    assert run_app(["claims", "ema_follows_batch"]) == 0
    assert capsys.readouterr().out.startswith("ema_follows_batch\n")


def test_the_claims_on_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 8)
    assert run_app(["claims", "s", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    verdicts = re.findall(r"^([a-z ]+): (\w+)$", shown, re.MULTILINE)
    assert {name for _, name in verdicts} == {claim.name for claim in CLAIMS}
    assert ("not measured", "warmup_needed") in verdicts
    plan = f"sweep claims warmup_needed --plan --set data.name=digits --root {tmp_path}"
    plan += " && sweep run claim_warmup_needed.toml"
    assert f"    to settle it:\n      {plan} --root {tmp_path}\n" in shown
    assert run_app(["claims", "s", "--root", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["study"] == ["s"]
    by_name = {each["name"]: each for each in document["findings"]}
    assert (by_name["warmup_needed"]["verdict"], by_name["warmup_needed"]["trainings"]) == ("not measured", 52)


def test_a_plan_is_a_file_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["claims", "warmup_needed", "--plan", "--set", "budget.steps=20"]
    assert run_app([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "claim": "warmup_needed", "file": "claim_warmup_needed.toml", "trainings": 52,
        "command": "sweep run claim_warmup_needed.toml",
    }  # fmt: skip
    spec = load_study("claim_warmup_needed.toml")
    assert (spec.trials, spec.base["budget.steps"], "budget.epochs" in spec.base) == (52, 20, False)
    assert spec.config({"seed": 7, "schedule.warmup": 0.1}).seed == 7
    assert run_app(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    Path("claim_warmup_needed.toml").unlink()
    assert run_app([*arguments, "--set", "data.name=cifar10"]) == 0
    assert load_study("claim_warmup_needed.toml").base["data.name"] == "cifar10"


@pytest.mark.parametrize(("arguments", "message"), [
    (["warmup", "--plan"], "unknown claim 'warmup'"),
    (["--plan"], "the name of a claim is required; `sweep claims` lists all of them"),
    (["warmup_needed", "--set", "data.name=digits"], "--set requires --plan"),
    (["warmup_needed", "--plan", "--set", "schedule.warmup=0"], "varies it; leave it out"),
    (["nothing"], "no such study folder"),
    (["warmup_neded"],
     "no such study folder, here or under runs; `sweep run` makes one. Claims of a similar name: warmup_needed"),
])  # fmt: skip
def test_mistakes_are_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run_app(["claims", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
