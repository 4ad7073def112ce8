"""After its supervisor was killed, a study resumes the trial that was training from its last checkpoint."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from records_factory import make_spec

from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.inline import InlineExecutor
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.tuner import Tuner


def study(trials: int = 1) -> StudySpec:
    base = {"data.subset": 64, "budget.epochs": 40.0, "model.dropout": 0.1, "optimizer.lr": 0.02}
    space = {"batch.micro": {"choice": [16]}}
    return make_spec(trials=trials, base=base, space=space, confirm={"max_configurations": 0, "seeds": 0})


def train(folder: Path, is_told: bool = False) -> Store:
    """Runs the study in ``folder``, with a checkpoint at the end of every timed window."""
    spec = study()
    store = open_store(folder / "study.sqlite", create=True)
    if store.load_spec(spec.name) is None:
        store.create_study(spec)
    plan = RunPlan(key_of=TrialConfig.model_dump_json, checkpoint_root=folder / "checkpoints", checkpoint_seconds=0)
    with InlineExecutor("cpu") as executor:
        for event in Tuner(spec, store, executor, plan).run():
            if is_told:
                print(event, flush=True)
    return store


def test_a_killed_study_goes_on_inside_its_trial(tmp_path: Path) -> None:
    code = "import sys, pathlib, test_continuation; test_continuation.train(pathlib.Path(sys.argv[1]), True)"
    killed = tmp_path / "killed"
    killed.mkdir()
    command = [sys.executable, "-c", code, str(killed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    assert child.stdout is not None
    for line in child.stdout:
        if "TrialAdvanced" in line and "step=48" in line:
            break
    child.kill()
    child.wait(60)
    child.stdout.close()
    assert list((killed / "checkpoints" / "0").iterdir())
    (tmp_path / "unbroken").mkdir()
    with closing(train(killed)) as store, closing(train(tmp_path / "unbroken")) as unbroken:
        (record,), (expected,) = store.trial_records("s"), unbroken.trial_records("s")
        assert record.outcome == expected.outcome == "complete"
        assert record.measurements["val_loss"] == expected.measurements["val_loss"]
        assert record.measurements["num_steps"] == 160
        curves = [
            [(each.step, each.train_loss, each.val_loss) for each in source.evaluations("s", 0)]
            for source in (store, unbroken)
        ]
        assert curves[0] == curves[1]
        assert len(curves[0]) == 40
    assert not list((killed / "checkpoints").iterdir())
