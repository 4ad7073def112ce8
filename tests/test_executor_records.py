"""The same study by every executor leaves the same records, times apart."""

import importlib.util
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from fake_slurm import FakeSlurm

from sweep import load_frames

STUDY = """
name = "same"
question = "Does it matter where trials run?"
sampler = "grid"
objectives = ["val_accuracy", "num_steps"]
trials = 4
confirm = { max_configurations = 1, seeds = 2 }
[base]
data.name = "digits"
data.subset = 200
budget.epochs = 2
optimizer.name = "sgd"
[space]
"batch.micro" = { choice = [16, 64] }
"optimizer.lr" = { choice = [0.05, 1e4] }
"""
# What a clock, or the place of a process, has a part in.
DIFFERING = ("second", "step_time_error", "watts", "joules", "utilization", "load", "flags", "digest", "bottleneck")


def records(executor: str, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The trials and evaluations of the study as it was run in a folder of its own."""
    (folder / "study.toml").write_text(STUDY)
    (folder / executor).mkdir()
    table = "[sbatch]\njobs = 1\ngpus_per_node = 0\n" if executor == "slurm" else ""
    (folder / "on.toml").write_text(f'executor = "{executor}"\ndevice = "cpu"\n{table}')
    words = ["run", "study.toml", "--on", "on.toml", "--no-reuse", "--root", executor]
    command = [sys.executable, "-m", "sweep.cli", *words]
    with closing(FakeSlurm(folder / executor)) as cluster:
        # the same share of the cores whatever the slots
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | cluster.environment
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=600)
    frames = load_frames(folder / executor / "same", evaluations=True)
    trials = frames.trials.set_index("number").sort_index()
    evaluations = frames.evaluations.sort_values(["number", "step"]).reset_index(drop=True)
    return tuple(  # type: ignore[return-value]
        frame.drop(columns=[name for name in frame if any(word in name for word in DIFFERING)])
        for frame in (trials, evaluations)
    )


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("executor", "library"), [("inline", "torch"), ("ray", "ray"), ("slurm", "submitit")])
def test_records_are_the_same_wherever_trials_run(executor: str, library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    usual_trials, usual_evaluations = records("process", tmp_path)
    assert set(usual_trials["outcome"]) == {"complete", "diverged"}
    assert set(usual_trials["phase"]) == {"search", "confirm"}
    trials, evaluations = records(executor, tmp_path)
    pd.testing.assert_frame_equal(trials, usual_trials)
    pd.testing.assert_frame_equal(evaluations, usual_evaluations)
