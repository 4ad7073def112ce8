"""A user's script as a trial: what it is asked, what is observed of it, and how it ends."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from script_factory import LINES, NUM_TRAIN, NUM_VAL, make_spec, write_script

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.messages import Ending, Evaluation, ScriptCommand, TrialTask
from sweep.records.records import decode_correct
from sweep.script.channel import Channel, describe_script_trial
from sweep.script.check import check_script
from sweep.script.runner import run_script
from sweep.script.trial import Trial

_ASKED = {"batch.micro": 16, "batch.accumulation": 4, "optimizer.lr": 0.2, "optimizer.weight_decay": 0.01}


def _run(folder: Path, spec: StudySpec | None = None, **values: Any) -> tuple[Ending, list[Evaluation]]:
    spec = spec or make_spec(folder)
    config = spec.config(_ASKED | values)
    task = TrialTask(number=0, config=config, device="cpu", script=ScriptCommand(**spec.command(config, str(folder))))
    *messages, ending = run_script(task)
    assert isinstance(ending, Ending)
    return ending, [message for message in messages if isinstance(message, Evaluation)]


def test_a_correct_script_is_observed_as_it_was_asked(tmp_path: Path) -> None:
    write_script(tmp_path)
    ending, evaluations = _run(tmp_path)
    assert (ending.outcome, ending.error) == ("complete", "")
    measured = ending.measurements
    assert measured["observed_batch_size"] == 64
    assert measured["observed_lr"] == 0.2
    assert measured["observed_weight_decay"] == 0.01
    assert measured["num_steps"] == 6 * (NUM_TRAIN // 64)
    assert measured["num_epochs"] == 6
    assert measured["num_parameters"] == 8 * 32 + 32 + 32 * 2 + 2
    assert measured["num_val_samples"] == NUM_VAL
    assert 0 < measured["train_seconds"] < measured["total_seconds"]
    assert measured["eval_seconds"] > 0
    # parameters, gradients and the activations of 16 samples, at least
    assert measured["peak_memory_bytes"] > 4 * (2 * measured["num_parameters"] + 16 * 32)
    assert not [flag for flag in ending.quality_flags if flag in _DEVIATIONS]
    assert [each.step for each in evaluations] == [12 * (epoch + 1) for epoch in range(6)]
    assert evaluations[-1].val_accuracy == measured["val_accuracy"]
    assert decode_correct(ending.correct_images).mean() == pytest.approx(measured["val_accuracy"])
    assert ending.device == "CPU" or ending.device.startswith("CPU ")


def test_the_first_steps_of_a_script_count_as_long_as_its_others(tmp_path: Path) -> None:
    write_script(tmp_path)
    measured = _run(tmp_path, **{"batch.accumulation": 1})[0].measurements
    assert measured["num_steps"] == 6 * (NUM_TRAIN // 16)
    assert measured["train_seconds"] == pytest.approx(6 * NUM_TRAIN / measured["images_per_second"])


_DEVIATIONS = frozenset({
    "batch_not_followed", "rate_not_followed", "decay_not_followed", "schedule_not_followed", "leftover_gradients",
    "evaluation_in_window", "memory_recovered", "not_observed",
})  # fmt: skip


class _Broken(NamedTuple):
    """A script that does something else than it is asked, the flags that say so, and the observed batch size."""

    name: str
    flags: set[str]
    batch: int
    changes: dict[str, str]


_OUT_OF_MEMORY = """
batch = trial.batch_size
def loss_of(a, b):
    global batch, loader
    if batch == 16:
        batch = 8
        loader = DataLoader(train, batch_size=batch, shuffle=True)
        raise RuntimeError("out of memory")
    return nn.functional.cross_entropy(model(a), b)
try:
    for a, b in loader:
        loss_of(a, b)
except RuntimeError:
    pass
""".strip()
_BROKEN = [
    _Broken("forgot to accumulate", {"batch_not_followed"}, 16, {"steps": "split = 1"}),
    _Broken("steps at every micro batch", {"batch_not_followed"}, 16, {"if": "        if True:"}),
    _Broken("batch in the script", {"batch_not_followed"}, 40,
            {"loader": "loader = DataLoader(train, batch_size=10, shuffle=True)"}),
    _Broken("rate in the script", {"rate_not_followed"}, 64,
            {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.03, weight_decay=trial.weight_decay)\n"
                          "trial.lr"}),
    _Broken("no decay", {"decay_not_followed"}, 64,
            {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=trial.lr)\ntrial.weight_decay"}),
    _Broken("schedule at every micro batch", {"schedule_not_followed"}, 64,
            {"loss": LINES["loss"] + "\n        scheduler.step()",
             "step": "            optimizer.step(); optimizer.zero_grad()"}),
    _Broken("nominal batch of a framework", {"batch_not_followed"}, 128,
            {"steps": "split = max(1, round(128 / trial.batch_size))"}),
    _Broken("evaluation in the loop", {"evaluation_in_window"}, 64,
            {"step": LINES["step"] + "\n            with torch.no_grad():\n"
                                     "                for _ in range(200): model(x)"}),
    _Broken("gradients left over", {"leftover_gradients"}, 64, {"end": ""}),
    _Broken("batch halved after out of memory", {"batch_not_followed"}, 32,
            {"schedule": LINES["schedule"] + "\n" + _OUT_OF_MEMORY}),
    _Broken("loader rebuilt with another batch", {"batch_not_followed"}, 64,
            {"begin": "for epoch in range(6):\n    if epoch == 5: loader = DataLoader(train, batch_size=8)\n"
                      "    for i, (a, b) in enumerate(loader):", "steps": "split = 4"}),
    _Broken("two optimizers of which the large one steps less often", {"batch_not_followed"}, 128,
            {"optimizer": LINES["optimizer"] + "\nsmall = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)",
             "if": "        small.step()\n        if (i + 1) % (2 * split) == 0:"}),
    _Broken("an optimizer that torch does not know", {"not_observed"}, 0,
            {"step": "            for p in model.parameters(): p.data -= trial.lr * p.grad; p.grad = None",
             "end": ""}),
]  # fmt: skip


@pytest.mark.parametrize("broken", _BROKEN, ids=[each.name for each in _BROKEN])
def test_a_script_that_does_something_else_is_named(tmp_path: Path, broken: _Broken) -> None:
    write_script(tmp_path, **broken.changes)
    ending, _ = _run(tmp_path)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert _DEVIATIONS.intersection(ending.quality_flags) == broken.flags
    assert ending.measurements.get("observed_batch_size", 0) == broken.batch


_ENDS = [
    ("crashed", "ValueError: no such thing", {"end": "    raise ValueError('no such thing')"}),
    ("out_of_memory", "out of memory", {"end": "    raise RuntimeError('DefaultCPUAllocator: out of memory')"}),
    ("crashed", "exit code 3", {"end": "    print('the reason'); raise SystemExit(3)"}),
    ("crashed", "the reason", {"end": "    print('the reason'); raise SystemExit(3)"}),
    ("crashed", "killed by SIGKILL", {"end": "    import os; os.kill(os.getpid(), 9)"}),
    ("crashed", "trial.report(val_accuracy=...)", {"report": ""}),
    ("diverged", "val_accuracy is nan", {"report": "    trial.report(val_accuracy=float('nan'))"}),
    ("crashed", "the study measures val_accuracy", {"report": "    trial.report(accuracy=0.5)"}),
    ("crashed", "never took optimizer.weight_decay",
     {"optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=trial.lr, weight_decay=0.01)"}),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "reason", "changes"), _ENDS, ids=[each[1] for each in _ENDS])
def test_every_end_has_an_outcome_and_its_reason(
    tmp_path: Path, outcome: str, reason: str, changes: dict[str, str]
) -> None:
    write_script(tmp_path, **changes)
    ending, _ = _run(tmp_path)
    assert ending.outcome == outcome
    assert reason in ending.error


_LOSSES = "    losses = nn.functional.cross_entropy(model(val.tensors[0]), val.tensors[1], reduction='none').detach()"
_BY_LOSS = {"evaluate": _LOSSES, "report": "    trial.report(val_loss=losses.mean(), scores=losses)"}


@pytest.mark.parametrize(("metric", "reached", "missed", "changes"), [
    ("val_accuracy", 0.85, 1.0, {}), ("val_loss", 0.45, 1e-4, _BY_LOSS),
])  # fmt: skip
def test_a_target_ends_a_script_that_reaches_it(
    tmp_path: Path, metric: str, reached: float, missed: float, changes: dict[str, str]
) -> None:
    write_script(tmp_path, **changes)
    script = {"command": "python train.py", "folder": str(tmp_path), "metric": metric}
    made = {target: make_spec(tmp_path, script=script, base={"budget.target": target}) for target in (reached, missed)}
    sign, asked = made[reached].quality.sign, {"optimizer.lr": 0.05}
    ending, evaluations = _run(tmp_path, made[reached], **asked)
    assert (ending.outcome, ending.error) == ("complete", "")
    *before, last = [sign * getattr(each, metric) for each in evaluations]
    assert max(before) < sign * reached <= last
    assert ending.measurements["steps_to_target"] == ending.measurements["num_steps"] == evaluations[-1].step
    assert ending.measurements["seconds_to_target"] == evaluations[-1].train_seconds
    assert ending.correct_images
    ending, evaluations = _run(tmp_path, made[missed], **asked)
    assert ending.outcome == "target_missed"
    assert f"short of budget.target = {missed:g}" in ending.error
    assert len(evaluations) == 6
    assert "steps_to_target" not in ending.measurements


def test_a_target_excuses_no_value_that_the_script_never_took(tmp_path: Path) -> None:
    write_script(tmp_path, trial=LINES["trial"] + "\nlr = 0.2", optimizer=LINES["optimizer"].replace("trial.lr", "lr"))
    ending, _ = _run(tmp_path, make_spec(tmp_path, base={"budget.target": 0.6}))
    assert ending.outcome == "crashed"
    assert "the script never took optimizer.lr" in ending.error


@pytest.mark.parametrize("metric", ["val_accuracy", "f1"])
def test_a_target_of_a_share_in_percent_is_refused(tmp_path: Path, metric: str) -> None:
    script = {"command": "python train.py", "metric": metric}
    with pytest.raises(InputError, match=rf"budget\.target = 90: {metric} is a share, above 0 and at most 1"):
        make_spec(tmp_path, script=script, base={"budget.target": 90})


def test_values_reach_a_script_by_its_command_alone(tmp_path: Path) -> None:
    values = {"batch.micro": 32, "batch.accumulation": 2, "optimizer.lr": 0.05, "optimizer.weight_decay": 0.0}
    named = (
        "import sys\nclass trial: pass\ntrial.batch_size, trial.accumulation, trial.seed = map(int, sys.argv[1:4])\n"
    )
    named += "trial.lr, trial.weight_decay, share = map(float, sys.argv[4:])\ntrial.report = sweep.trial().report"
    write_script(tmp_path, trial=named)
    command = "{batch.micro} {batch.accumulation} {seed} {optimizer.lr} {optimizer.weight_decay} {script.share}"
    script = {"command": f"python train.py {command}", "folder": str(tmp_path)}
    spec = make_spec(tmp_path, script=script, base={"script.share": 0.25})
    ending, _ = _run(tmp_path, spec, **values)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert ending.measurements["observed_batch_size"] == 64
    assert ending.measurements["observed_lr"] == 0.05


# All that a check can find at once; the loss is a mean over the samples that count, as over the tokens of sequences of
# different length.
_UNFOLLOWED = {
    "loader": "loader = DataLoader(train, batch_size=trial.batch_size + 1, shuffle=True)",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=0.3)",
    "seed": "torch.manual_seed(0)",
    "loss": LINES["loss"].replace(
        "nn.functional.cross_entropy(model(a), b)",
        "(nn.functional.cross_entropy(model(a), b, reduction='none') * b).sum() / b.sum()"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "failed"), [
    ({}, set()),
    (_UNFOLLOWED, {"batch size", "learning rate", "weight decay", "seed", "accumulation"}),
], ids=["correct", "broken"])  # fmt: skip
def test_check_names_what_a_script_does_not_follow(tmp_path: Path, changes: dict[str, str], failed: set[str]) -> None:
    write_script(tmp_path, **changes)
    found = check_script(make_spec(tmp_path), "cpu")
    assert {row.setting for row in found.rows if row.status == "FAIL"} == failed
    assert {row.setting for row in found.rows} >= {
        "batch size",
        "learning rate",
        "weight decay",
        "seed",
        "accumulation",
    }
    assert list(found.costs) == [16, 32]


_BY_HAND = {  # without an optimizer of torch
    "step": "            for p in model.parameters(): p.data -= trial.lr * p.grad; p.grad = None\n"
            "            trial.step(trial.batch_size * split)",
    "optimizer": "trial.weight_decay", "schedule": "", "end": "    for p in model.parameters(): p.grad = None",
}  # fmt: skip


def test_check_says_what_it_cannot_know(tmp_path: Path) -> None:
    write_script(tmp_path, **_BY_HAND)
    ending, _ = _run(tmp_path)
    assert ending.measurements["observed_batch_size"] == 64
    assert "observed_lr" not in ending.measurements
    assert not _DEVIATIONS.intersection(ending.quality_flags)
    found = check_script(make_spec(tmp_path), "cpu")
    assert {row.setting: row.observed for row in found.rows if row.status == "note"} == {
        "seed": "not known", "accumulation": "not known",
    }  # fmt: skip


def test_check_refuses_a_script_that_fails_at_one_of_its_batch_sizes(tmp_path: Path) -> None:
    write_script(tmp_path, loss=f"        if i and trial.batch_size == 16: raise ValueError('torn')\n{LINES['loss']}")
    with pytest.raises(InputError, match="torn"):
        check_script(make_spec(tmp_path), "cpu")


def test_check_doubles_the_batch_size_that_the_study_fixes(tmp_path: Path) -> None:
    write_script(tmp_path, loader="loader = DataLoader(train, batch_size=64)", steps="split = 1")
    space = {"optimizer.lr": {"choice": [0.05, 0.2]}, "optimizer.weight_decay": {"choice": [0.0, 0.01]}}
    for base in ({"batch.global": 64}, {"batch.micro": 64, "batch.accumulation": 1}):
        found = check_script(make_spec(tmp_path, space=space, base=base), "cpu")
        sizes = [(row.asked, row.observed, row.status) for row in found.rows if row.setting == "batch size"]
        assert sizes == [("64", "64", "ok"), ("128", "64", "FAIL")], base


def test_a_script_may_have_a_path_of_its_own_and_report_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library/of_mine.py").write_text("import numpy\nnum_samples = numpy.int64(104)\n")
    report = "trial.report(scores=right.to(torch.bfloat16), n=of_mine.num_samples, val_accuracy=right.float().mean())"
    write_script(tmp_path, data=f"import of_mine\n{LINES['data']}", report=f"    {report}")
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 25)))
    script = {"command": "python train.py", "folder": str(tmp_path)}
    spec = make_spec(tmp_path, script=script | {"environment": {"PYTHONPATH": str(tmp_path / "library")}})
    ending, _ = _run(tmp_path, spec)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert ending.measurements["num_val_samples"] == NUM_VAL
    assert decode_correct(ending.correct_images).mean() == pytest.approx(ending.measurements["val_accuracy"])


def test_a_report_without_a_supervisor_goes_nowhere(tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "gone")):
        told = json.loads(describe_script_trial(address, {}, "val_loss", ""))
        channel = Channel(told)
        Trial({}, channel, None).report(val_loss=1.0)
        assert not channel.is_asked_to_stop
