"""Studies whose trials are a user's script: from the study file to the answer, and through faults."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cli_calls import call_sweep
from executor_contract import fake_cluster
from script_factory import LINES, write_script

from sweep import load_frames

_STUDY = """
name = "own"
trials = {trials}
sampler = "random"
confirm = {{ max_configurations = 1, seeds = 3, share = 1000 }}

[script]
command = "python train.py"

[base]
"batch.accumulation" = 1

[space]
"batch.micro" = {{ choice = [16, 32] }}
"optimizer.lr" = {{ log = [0.02, 0.5] }}
"optimizer.weight_decay" = {{ choice = [0.0, 0.01] }}
"""


def _write_study(folder: Path, trials: int = 3, **changes: str) -> None:
    write_script(folder, **changes)
    (folder / "own.toml").write_text(_STUDY.format(trials=trials))


def test_a_script_is_searched_confirmed_and_answered_for(tmp_path: Path) -> None:
    _write_study(tmp_path)
    ran = call_sweep("run", "own.toml", "--json", "--on", "cpu", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["outcomes"] == {"complete": 6}
    (tmp_path / "train.py").write_text("raise SystemExit('a reader of records must never run this')")
    frames = load_frames(tmp_path / "runs" / "own", evaluations=True, correct_images=True)
    trials = frames.trials
    assert (trials["observed_batch_size"] == trials["global_batch_size"]).all()
    assert (trials["observed_lr"] == trials["config.optimizer.lr"]).all()
    assert trials["config.model.name"].isna().all()  # a script has no such key
    assert trials["config.script"].isna().all()
    assert (trials["num_steps"] == 6 * (800 // trials["config.batch.micro"])).all()
    assert frames.evaluations is not None
    assert len(frames.evaluations) == 6 * len(trials)
    assert frames.correct_images is not None
    assert len(frames.correct_images) == len(trials)
    answer = json.loads(call_sweep("recommend", "runs/own", "--json", cwd=tmp_path).stdout)["batch_size"]
    assert answer["named"]["global_batch_size"] in (16, 32)
    for arguments in (("report", "runs/own"), ("check", "own.toml"), ("export", "runs/own", "exported")):
        assert call_sweep(*arguments, cwd=tmp_path).returncode == 0
    copied = call_sweep("import", "exported", "--root", "other", cwd=tmp_path)
    assert copied.returncode == 0, copied.stderr
    assert load_frames(tmp_path / "other" / "own").trials.equals(trials)


@pytest.mark.wide
@pytest.mark.parametrize(("executor", "settings"), [
    ("ray", 'executor = "ray"\ndevice = "cpu"'),
    ("submitit", 'executor = "slurm"\n[sbatch]\njobs = 2\ngpus_per_node = 0'),
])  # fmt: skip
def test_a_script_is_a_trial_on_the_machines_of_a_cluster(executor: str, settings: str, tmp_path: Path) -> None:
    pytest.importorskip(executor)
    _write_study(tmp_path, trials=1)
    (tmp_path / "cluster.toml").write_text(settings)
    command = [sys.executable, "-m", "sweep.cli", "run", "own.toml", "--json", "--on", "cluster.toml"]
    # sockets of Ray do not fit into the folder of a test
    with TemporaryDirectory(dir="/tmp", prefix="s-") as short, fake_cluster(Path(short)):
        ran = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"TMPDIR": short}, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["outcomes"] == {"complete": 4}
    frames = load_frames(tmp_path / "runs" / "own", correct_images=True)
    assert (frames.trials["observed_batch_size"] == frames.trials["global_batch_size"]).all()
    assert (frames.trials["num_steps"] == 6 * (800 // frames.trials["config.batch.micro"])).all()
    assert frames.correct_images is not None
    assert len(frames.correct_images) == 4


def test_a_script_that_does_something_else_stops_the_study(tmp_path: Path) -> None:
    loader = "trial.batch_size\nloader = DataLoader(train, batch_size=25, shuffle=True)"
    _write_study(tmp_path, trials=6, loader=loader)
    ran = call_sweep("run", "own.toml", "--json", "--on", "cpu", cwd=tmp_path)
    assert ran.returncode == 1
    stopped = json.loads(ran.stdout)["stopped"]
    assert "the script stepped every 25 samples" in stopped
    assert "{batch.micro}" in stopped
    trials = load_frames(tmp_path / "runs" / "own").trials
    assert len(trials) == 2
    assert trials["quality_flags"].str.contains("batch_not_followed").all()
    answered = json.loads(call_sweep("recommend", "runs/own", "--json", cwd=tmp_path).stdout)
    assert {point["batch"] for point in (answered["batch_size"] or {}).get("curve", ())} <= {25}


def test_a_script_without_its_seed_is_found_by_its_repetition(tmp_path: Path) -> None:
    _write_study(tmp_path, seed="trial.seed; torch.manual_seed(0)")
    assert call_sweep("run", "own.toml", "--on", "cpu", cwd=tmp_path).returncode == 0
    trials = load_frames(tmp_path / "runs" / "own").trials
    is_flagged = trials["quality_flags"].str.contains("seed_not_followed")
    assert is_flagged.tolist() == (trials["phase"] == "confirm").tolist()


def test_trials_that_share_a_device_tell_what_the_rest_costs(tmp_path: Path) -> None:
    # every sample is right, in which two seeds may agree
    report = "    trial.report(val_accuracy=1.0, scores=torch.ones(104))"
    _write_study(tmp_path, report=report)
    (tmp_path / "packed.toml").write_text('device = "cpu"\nper_device = 2\n')
    forecast = json.loads(call_sweep("run", "own.toml", "--dry-run", "--json", "--on", "cpu", cwd=tmp_path).stdout)
    assert forecast["expected_total_seconds"] is forecast["peak_memory_bytes_low"] is None
    ran = call_sweep("run", "own.toml", "--json", "--on", "packed.toml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["outcomes"] == {"complete": 6}
    trials = load_frames(tmp_path / "runs" / "own").trials
    assert trials["quality_flags"].str.contains("packed").all()
    assert not trials["quality_flags"].str.contains("seed_not_followed").any()
    _write_study(tmp_path, trials=30, report=report)
    more = json.loads(call_sweep("run", "own.toml", "--dry-run", "--json", "--on", "cpu", cwd=tmp_path).stdout)
    assert more["num_trials"] == 27
    # as many times the seconds of a training, apart from the spread between them
    assert 27 * trials["train_seconds"].min() < more["expected_total_seconds"] < 100 * trials["total_seconds"].max()
    assert more["peak_memory_bytes_high"] <= trials["peak_memory_bytes"].max()


_REFUSED = [
    ("[script]\ncommand = 'python train.py {optimizer.rate}'", "unknown key 'optimizer.rate'"),
    ("[script]\ncommand = 'python absent.py'", "absent.py is not there"),
    ("[script]\ncommand = 'no-such-program'", "no program 'no-such-program'"),
    ("[script]\ncommand = 'python train.py {optimizer.beta2}'", "optimizer.beta2} has no value"),
    ("[script]\ncommand = 'python train.py'\n[base]\n'rules.lr' = 'sqrt'", "rules.lr"),
    ("[base]\n'script.share' = 0.5", "name its command in [script]"),
]


@pytest.mark.parametrize(("table", "reason"), _REFUSED, ids=[reason for _, reason in _REFUSED])
def test_a_script_that_cannot_run_is_refused_before_anything_runs(tmp_path: Path, table: str, reason: str) -> None:
    write_script(tmp_path)
    space = '[space]\n"batch.micro" = { choice = [16, 32] }\n'
    (tmp_path / "own.toml").write_text(f'name = "own"\n{table}\n{space}')
    ran = call_sweep("run", "own.toml", cwd=tmp_path)
    assert ran.returncode == 2
    assert reason in ran.stderr
    assert not (tmp_path / "runs").exists()


# It continues from its own checkpoint in the folder that survives an attempt.
_RESUMED = {
    "begin": "from pathlib import Path\nsaved = Path(trial.folder, 'saved.pt')\nfirst = 0\nif saved.exists():\n"
    "    state = torch.load(saved)\n    model.load_state_dict(state['model'])\n    first = state['epoch']\n"
    "import time\nfor epoch in range(first, 6):\n    time.sleep(0.3)\n    for i, (a, b) in enumerate(loader):",
    "report": "    torch.save({'model': model.state_dict(), 'epoch': epoch + 1}, saved)\n" + LINES["report"],
}  # fmt: skip


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    code = "import sys; from sweep.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "own.toml", "--on", "cpu"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _count_scripts(folder: Path) -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_script = b"train.py" in (entry / "cmdline").read_bytes()
                found += is_script and (entry / "cwd").resolve() == folder.resolve()
            except OSError:
                continue
    return found


def _wait_for_scripts(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while _count_scripts(folder) != count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.wide
def test_a_killed_supervisor_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    _write_study(tmp_path, trials=9, **_RESUMED)
    for delay in (0.5, 2.0, 3.5):
        supervisor = _start(tmp_path)
        _wait_for_scripts(tmp_path, 1)
        time.sleep(delay)
        supervisor.kill()
        supervisor.wait()
        _wait_for_scripts(tmp_path, 0)
    assert _start(tmp_path).wait(600) == 0
    trials = load_frames(tmp_path / "runs" / "own").trials
    assert trials["outcome"].tolist() == ["complete"] * 12
    assert len(trials[["config.batch.micro", "config.optimizer.lr", "seed"]].drop_duplicates()) == 12


@pytest.mark.wide
def test_an_interrupted_script_stops_at_its_report_and_continues(tmp_path: Path) -> None:
    _write_study(tmp_path, trials=1, **_RESUMED)
    supervisor = _start(tmp_path)
    _wait_for_scripts(tmp_path, 1)
    log = tmp_path / "runs" / "own" / "checkpoints" / "0" / "saved.pt"
    deadline = time.monotonic() + 120
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(supervisor.pid, signal.SIGUSR1)
    assert supervisor.wait(60) == 75
    assert log.exists()
    attempts = load_frames(tmp_path / "runs" / "own").attempts
    assert len(attempts) == 1
    assert _start(tmp_path).wait(300) == 0
    frames = load_frames(tmp_path / "runs" / "own", evaluations=True)
    assert frames.trials["outcome"].tolist() == ["complete"] * 4
    assert (frames.attempts["number"] == 0).sum() == 2
    assert frames.trials["num_epochs"].iloc[0] < 6  # of the attempt that ended it
