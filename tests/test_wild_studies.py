"""Exports of an earlier schema, converted: they are imported whole, with the times that the clock measured."""

import json
from pathlib import Path

import pytest
from cli_calls import call_sweep
from wild_studies import copy_wild_study

from sweep.records.loading import load_frames


@pytest.mark.parametrize(
    ("name", "num_trials", "times", "lr_rule"),
    # the seconds of trials 0 and 4: of the first, the export has the time of a probe in place of that
    [("kill", 15, (3.2508899, 3.161032), "none"), ("vit_acc", 22, (3.811932, 3.821823), "auto")],
)
def test_an_earlier_export_is_imported_whole(
    name: str, num_trials: int, times: tuple[float, float], lr_rule: str, tmp_path: Path
) -> None:
    copy = copy_wild_study(f"study_{name}", tmp_path / "copy")
    imported = call_sweep("import", str(copy), "--root", "runs", cwd=tmp_path)
    assert (imported.returncode, imported.stderr) == (0, "")
    frames = load_frames(tmp_path / "runs" / name)
    trials = frames.trials.set_index("number")
    assert len(trials) == num_trials
    assert trials["train_seconds"][[0, 4]].tolist() == pytest.approx(times, rel=1e-6)
    assert set(trials["config.rules.lr"]) == {lr_rule}
    assert set(trials["shape_digest"]) == set(frames.probes["shape_digest"])  # a probe is of a trial's steps
    answer = call_sweep("recommend", name, "--root", "runs", "--json", cwd=tmp_path)
    assert json.loads(answer.stdout)["batch_size"]["named"]["global_batch_size"] == 64
