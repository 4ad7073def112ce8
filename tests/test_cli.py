"""The command line as a user meets it: real studies on real digits, and mistakes that are refused."""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cli_calls import INLINE, TINY, call_sweep
from executor_contract import await_dead, marked

from studies import shipped_studies
from sweep import load_frames
from sweep.cli.app import COMMANDS, load_command, run_app
from sweep.config.study import Confirm, describe_cost
from sweep.config.study_file import load_study
from sweep.config.tables import DATASETS, MODELS, OPTIMIZERS, SCHEDULES
from sweep.config.trial import TrialConfig, config_keys

SWEEP = [sys.executable, "-m", "sweep.cli"]


def sweep(*arguments: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SWEEP, *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


Ran = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A finished study, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "tiny.toml").write_text(TINY)
    return folder, sweep("run", "tiny.toml", cwd=folder)


def test_a_study_runs_from_its_file_to_its_report(ran: Ran) -> None:
    folder, result = ran
    assert result.returncode == 0, result.stderr
    *answer, command, report = result.stdout.splitlines()
    assert report == "report: runs/tiny/report.html"
    assert "\n".join(answer) in sweep(*shlex.split(command.partition(": sweep ")[2]), cwd=folder).stdout
    assert len(answer) > 1
    assert (folder / "runs/tiny/report.html").stat().st_size > 100_000
    assert len(list((folder / "runs/tiny").glob("*.png"))) >= 4
    assert "Traceback" not in result.stderr
    frames = load_frames(folder / "runs/tiny", evaluations=True)
    assert frames.trials["outcome"].tolist() == ["complete"] * 4
    assert frames.trials["phase"].tolist() == ["search"] * 3 + ["confirm"]
    assert frames.trials["test_accuracy"].notna().tolist() == [False, False, False, True]
    assert set(frames.evaluations["number"]) == {0, 1, 2, 3}
    ledger = frames.trials[["setup_seconds", "warmup_seconds", "train_seconds", "eval_seconds"]].sum(axis=1)
    assert (ledger <= frames.trials["total_seconds"] * 1.001).all()


def test_the_same_command_again_trains_nothing_and_counts_the_same(ran: Ran) -> None:
    folder, _ = ran
    before = load_frames(folder / "runs/tiny").trials
    result = call_sweep("run", "tiny.toml", "--json", *INLINE, cwd=folder)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["num_trials"] == 4
    assert document["outcomes"] == {"complete": 4}
    after = load_frames(folder / "runs/tiny").trials
    assert after.equals(before)


def test_a_second_study_takes_equal_trials_from_the_first(ran: Ran) -> None:
    folder, _ = ran
    # of few steps on a busy machine a time may be too uncertain to be taken, so that nothing here depends on times
    timeless = TINY.replace("trials = 3", 'trials = 3\nobjectives = ["val_accuracy", "peak_memory_bytes"]')
    for name in ("first", "copy"):
        (folder / f"{name}.toml").write_text(timeless.replace('"tiny"', f'"{name}"'))
        result = call_sweep("run", f"{name}.toml", *INLINE, cwd=folder)
        assert result.returncode == 0, result.stderr
    copied, first = (load_frames(folder / f"runs/{name}").trials for name in ("copy", "first"))
    assert f"reused {len(copied)} trials from earlier records, which saved" in result.stderr
    assert copied["reused_from"].str.fullmatch("(tiny|first)/[0-9]+").all()
    assert copied["val_accuracy"].tolist() == first["val_accuracy"].tolist()
    fresh = ("--fresh", "--no-reuse", "--trials", "1", "--set", "confirm.seeds=0")
    result = call_sweep("run", "copy.toml", *fresh, *INLINE, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert load_frames(folder / "runs/copy").trials["reused_from"].tolist() == [""]
    assert len(list((folder / "runs").glob("copy.aside-*/study.sqlite"))) == 1


def test_a_changed_study_is_refused_with_what_changed(ran: Ran) -> None:
    folder, _ = ran
    result = call_sweep("run", "tiny.toml", "--set", "budget.epochs=2", cwd=folder)
    assert result.returncode == 2
    assert "base.budget.epochs: 1 -> 2" in result.stderr
    assert "--fresh" in result.stderr


def test_train_prints_the_record_and_saves_the_weights(tmp_path: Path) -> None:
    arguments = [
        "--set", "data.subset=256", "--set", "budget.steps=3", "--set", "batch.global=48", "--set", "batch.micro=32",
    ]  # fmt: skip
    result = call_sweep("train", *arguments, "--save", "weights.safetensors", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert (record["outcome"], record["num_steps"], record["global_batch_size"]) == ("complete", 3, 48)
    assert record["config.batch.accumulation"] is None
    assert 0 <= record["val_accuracy"] <= 1
    assert "test_accuracy" not in record
    assert "effective batch size 48 = 2 x micro batch of at most 32" in result.stderr
    from safetensors.numpy import load_file

    weights = load_file(tmp_path / "weights.safetensors")
    assert sum(array.size for array in weights.values()) >= record["num_parameters"]


def test_a_failed_training_ends_with_1_and_its_reason(tmp_path: Path) -> None:
    result = call_sweep(
        "train", "--set", "optimizer.lr=1e4", "--set", "optimizer.name=sgd", "--set", "data.subset=256",
        "--set", "budget.epochs=2", "--set", "schedule.warmup=0.0", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 1
    assert json.loads(result.stdout)["outcome"] == "diverged"


def test_list_has_every_key_that_an_unknown_one_may_stand_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["list", "--keys", "--json"]) == 0
    keys = {(item["where"], item["key"]): item for item in json.loads(capsys.readouterr().out)}
    assert keys[("configuration", "batch.global")]["default"] is None
    assert keys[("configuration", "optimizer.lr")]["default"] == TrialConfig().optimizer.lr
    assert keys[("study", "answer.tolerance.accuracy")]["default"] == 0.005
    assert keys[("study", "name")]["is_required"]
    assert {path for where, path in keys if where == "configuration"} == {*config_keys(), "script.NAME"}
    assert run_app(["list", "--keys"]) == 0
    rows = iter(capsys.readouterr().out.splitlines())
    assert "  confirm.share (default: 0.5)" in rows
    assert next(rows).strip() == Confirm.model_fields["share"].description


@pytest.mark.parametrize(("foreign", "own"), [
    ("lr_rules", "rules.lr"), ("learning_rate", "optimizer.lr"), ("optimizer.learning_rate", "optimizer.lr"),
    ("batch.batch_size", "batch.micro"), ("wd", "optimizer.weight_decay"),
])  # fmt: skip
def test_a_key_by_another_name_is_found(foreign: str, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["train", "--set", f"{foreign}=0.1"]) == 2
    refusal = capsys.readouterr().err
    assert f"unknown key {foreign!r}. Did you mean {own!r}" in refusal
    assert refusal.endswith("`sweep list --keys` lists all of them.\n")


def test_the_printed_template_is_a_study_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["list", "template"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text(text)
    assert load_study(tmp_path / "mine.toml").name == "my_study"
    assert {*MODELS, *DATASETS, *OPTIMIZERS, *SCHEDULES} <= set(text.split())
    assert "<models>" not in text
    assert run_app(["list", "quickstart", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"name": "quickstart", "text": shipped_studies()["quickstart"].read_text()}


def test_check_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["record store"]["status"] == checks["torchvision models"]["status"] == "ok"


def test_check_adds_what_held_up_the_trials_on_record(ran: Ran) -> None:
    folder, _ = ran
    for study in ("tiny.toml", "tiny", "runs/tiny"):
        document = json.loads(call_sweep("check", study, "--json", cwd=folder).stdout)
        assert document["study"] == "tiny"
        assert document["data"]["num_train"] == 256
        assert {"data"} < {item["name"] for item in document["trials"]}
        assert call_sweep("check", study, cwd=folder).returncode == 0
    assert json.loads(call_sweep("check", "quickstart", "--json", cwd=folder).stdout)["trials"] == []
    assert call_sweep("check", "tiny", "--set", "batch.micro=3", cwd=folder).returncode == 2


MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown study": (["run", "quikstart"], "Did you mean 'quickstart'?"),
    "missing file": (["run", "absent.toml"], "absent.toml: cannot be read"),
    "typo in a key": (["run", "tiny.toml", "--set", "batch.mirco=3"], "unknown key 'batch.mirco'. Did you mean"),
    "typo in a section": (["run", "tiny.toml", "--set", "dta.root=x"], "Did you mean 'data.root'"),
    "capitals in a name": (["run", "tiny.toml", "--set", "optimizer.name=adamW"], "Did you mean 'adamw'?"),
    "a missing folder to check": (["check", "imagefolder"], "give it by --set data.root=FOLDER"),
    "weights of another format": (["train", "--save", "w.pt"], "name it --save w.safetensors"),
    "no value": (["run", "tiny.toml", "--set", "batch.micro"], "write it as dotted.key=value"),
    "bad duration": (["run", "tiny.toml", "--timeout", "soon"], "--timeout soon"),
    "empty image folder": (["run", "tiny.toml", "--set", "data.name=imagefolder", "--set", "data.root=empty"], "empty"),
    "a store that is no URL": (["run", "tiny.toml", "--store", "records"], "--store records: not a database URL"),
    "a root that is a file": (["run", "tiny.toml", "--root", "tiny.toml"], "choose another folder with --root"),
    "weights into nowhere": (["train", "--save", "nowhere/w.safetensors"], "the folder cannot be written"),
    "records that are not ours": (["export", "foreign", "out"], "study.sqlite: it is no store of this program"),
    "a list of a study and of keys": (["list", "quickstart", "--keys"], "exclude each other"),
    "a change of this machine": (["check", "--set", "batch.micro=3"], "--set requires a study"),
    "missing plugin": (["run", "tiny.toml", "--plugin", "absent.py"], "absent.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    Path("empty").mkdir()
    Path("runs/foreign").mkdir(parents=True)
    Path("runs/foreign/study.sqlite").write_bytes(b"this is no database, but it is long enough to be one" * 50)
    assert run_app(arguments) == 2
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ") or message in error
    assert "Traceback" not in error
    assert not list(Path("runs").glob("tiny/study.sqlite"))


def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path) -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "sweep.cli", "list", "--keys"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert listing.stdout
    assert listing.stderr
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.stderr.close()
    assert listing.wait() == 128 + signal.SIGPIPE


def test_a_run_does_not_hide_exported_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    Path("runs/tiny").mkdir(parents=True)
    Path("runs/tiny/export.json").touch()
    for more in ((), ("--dry-run",)):
        assert run_app(["run", "tiny.toml", *more]) == 2
        assert "import them first with `sweep import runs/tiny --root OTHER`" in capsys.readouterr().err
    assert [file.name for file in Path("runs/tiny").iterdir()] == ["export.json"]


HEAVY = {
    "torch", "torchvision", "optuna", "numpy", "pandas", "scipy", "matplotlib", "sqlalchemy", "pyarrow", "jinja2",
    "psutil", "rich",
}  # fmt: skip
HELP = """
import contextlib, io, json, os, sys
from sweep.cli.app import COMMANDS, run_app

os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = "80"
pages, heavy = {}, set(json.loads(sys.argv[1]))
for words in ([], *([name] for name in COMMANDS)):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run_app([*words, "--help"]) == 0
    loaded = sorted((heavy if words else heavy | {"pydantic"}) & sys.modules.keys())
    pages[" ".join(words)] = (shown.getvalue().splitlines(), loaded)
print(json.dumps(pages))
"""


def test_each_help_fits_on_a_screen_and_imports_nothing_heavy() -> None:
    words = [sys.executable, "-c", HELP, json.dumps(sorted(HEAVY))]
    pages = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert pages.keys() == {"", *COMMANDS}
    assert {name: loaded for name, (_, loaded) in pages.items() if loaded} == {}
    assert {name: len(lines) for name, (lines, _) in pages.items() if len(lines) > 40} == {}
    assert max(len(line) for lines, _ in pages.values() for line in lines) <= 80


def test_every_command_that_answers_speaks_json_and_is_summed_up_by_its_help() -> None:
    options = {name: {each for item in load_command(name).params for each in item.opts} for name in COMMANDS}
    assert [name for name in COMMANDS if "--json" not in options[name]] == ["dashboard"]
    for name, entry in COMMANDS.items():
        assert load_command(name).help.partition(".")[0] == entry.summary.removesuffix("."), name


LONGER = [
    "run", "tiny.toml", "--trials", "2", "--set", "confirm.seeds=0", "--set", "budget.epochs=15",
    "--set", "data.subset=1000",
]  # fmt: skip


def start_study(folder: Path, marker: str) -> subprocess.Popen[str]:
    (folder / "tiny.toml").write_text(TINY)
    environment = {**os.environ, "SWEEP_TEST_MARKER": marker}
    return subprocess.Popen(
        [*SWEEP, *LONGER], cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_for_evaluations(folder: Path, count: int, number: int = 0) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (folder / "runs/tiny/study.sqlite").exists():
            try:
                evaluations = load_frames(folder / "runs/tiny", evaluations=True).evaluations
            except ValueError:
                evaluations = None  # opened while the tables are being made
            if evaluations is not None and (evaluations["number"] == number).sum() >= count:
                return evaluations
        time.sleep(0.1)
    raise AssertionError("no evaluation arrived")


@pytest.mark.parametrize(("sent", "code", "cause"), [
    (signal.SIGINT, 130, "interrupted"),
    pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.wide),
    pytest.param(signal.SIGUSR1, 75, "preempted", marks=pytest.mark.wide),
])  # fmt: skip
def test_an_interrupted_study_leaves_no_process_and_goes_on(
    tmp_path: Path, sent: signal.Signals, code: int, cause: str
) -> None:
    marker = f"{tmp_path.name}-{sent.name}"
    study = start_study(tmp_path, marker)
    wait_for_evaluations(tmp_path, 2)
    study.send_signal(sent)
    _, errors = study.communicate(timeout=120)
    assert study.returncode == code, errors
    assert "Traceback" not in errors
    assert f"{cause}: waiting for a checkpoint of 1 running trial" in errors
    assert f"stopped: {cause}; run the same command again to resume." in errors
    assert list((tmp_path / "runs/tiny/checkpoints/0").iterdir())
    await_dead(marked(marker))
    before = load_frames(tmp_path / "runs/tiny").trials
    assert before["outcome"].isna().tolist() == [True]
    result = call_sweep(*LONGER, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    frames = load_frames(tmp_path / "runs/tiny")
    assert frames.trials["outcome"].tolist() == ["complete", "complete"]
    assert frames.trials["trial_key"].is_unique
    assert frames.attempts["cause"].tolist() == [cause, "", ""]
    assert (tmp_path / "runs/tiny/report.html").exists()
    assert not list((tmp_path / "runs/tiny").glob("checkpoints/*"))


def test_a_signal_before_the_first_trial_ends_the_command_at_once(tmp_path: Path) -> None:
    for sent, code in ((signal.SIGUSR1, 75), (signal.SIGTERM, 143)):
        folder = tmp_path / sent.name
        folder.mkdir()
        study = start_study(folder, f"{tmp_path.name}-{sent.name}")
        deadline = time.monotonic() + 120
        while not (folder / "runs/probes.sqlite").exists():  # it opens the study and probes
            assert time.monotonic() < deadline
            time.sleep(0.02)
        study.send_signal(sent)
        _, errors = study.communicate(timeout=120)
        assert study.returncode == code, errors
        assert "Traceback" not in errors
        assert marked(f"{tmp_path.name}-{sent.name}") == []


def test_a_single_training_stops_after_its_step(tmp_path: Path) -> None:
    sets = ["data.name=digits", "data.subset=256", "budget.epochs=1000"]
    command = [*SWEEP, "train", *(word for value in sets for word in ("--set", value)), "--json"]
    training = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert training.stderr is not None
    said = ""
    while "epoch" not in said:
        said = training.stderr.readline()
        assert said
    training.send_signal(signal.SIGINT)
    record, errors = training.communicate(timeout=120)
    assert training.returncode == 130, errors
    assert "stops soon; a second signal stops at once" in errors
    told = json.loads(record)
    assert (told["outcome"], told["num_steps"] > 0) == ("cancelled", True)
    assert "stopped on request after step" in told["error"]


# ---------------------------------------------------------------------- in a shell

BIN = Path(sys.executable).parent


def run_shell(script: str, home: Path, **variables: str) -> str:
    environment = os.environ | {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"} | variables
    # the shell is found among the parents of the program, so that it must not be replaced by it
    result = subprocess.run(
        ["bash", "-c", f"{script}\ntrue"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stderr == ""
    return result.stdout


def test_the_version_names_what_matters_and_imports_none_of_it(tmp_path: Path) -> None:
    shown = run_shell("sweep --version", tmp_path)
    assert shown == (
        f"batch-sweep {version('batch-sweep')} (Python {platform.python_version()}, torch {version('torch')})\n"
    )
    code = "import sys; from sweep.cli.app import run_app; run_app(['--version']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"{shown}False\n"


COMPLETE = """
source "{script}"
COMP_WORDS=({words}); COMP_CWORD={index}
_sweep_completion sweep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_an_installed_completion_knows_commands_and_their_options(tmp_path: Path) -> None:
    assert "completion installed" in run_shell("sweep --install-completion", tmp_path)
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert str(script) in (tmp_path / ".bashrc").read_text()
    assert script.read_text().strip() == run_shell("sweep --show-completion", tmp_path).strip()

    def complete(*words: str) -> list[str]:
        commands = COMPLETE.format(script=script, words=" ".join(words), index=len(words) - 1)
        return run_shell(commands, tmp_path).split()

    assert complete("sweep", "re") == ["recommend", "report"]
    assert complete("sweep", "run", "--dr") == ["--dry-run"]
    assert set(complete("sweep", "compare", "--")) == {"--root", "--json", "--help"}
    assert set(complete("sweep", "''")) >= set(COMMANDS)


def test_the_list_of_studies_fits_the_terminal_and_splits_no_word(tmp_path: Path) -> None:
    shown = run_shell("sweep list", tmp_path, COLUMNS="40")
    assert max(map(len, shown.splitlines())) <= 40
    specs = [load_study(path) for path in shipped_studies().values()]
    texts = [text for spec in specs for text in (spec.name, spec.question, describe_cost(spec))]
    assert shown.split() == [word for text in texts for word in text.split()]
