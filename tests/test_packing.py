"""Trials that share a device: the same accuracy, a flag on the record, and solo probes for their times."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executor_contract import endings

from sweep.analysis.comparable import select_comparable
from sweep.analysis.costs import list_references
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.base import PROGRAM, WorkerProgram
from sweep.executors.packed import PackedExecutor
from sweep.executors.process import ProcessExecutor
from sweep.executors.table import ExecutorSettings
from sweep.records.loading import load_frames
from sweep.records.messages import (
    CROWDED,
    FAULTS_OF_THE_MACHINE,
    Ending,
    Evaluation,
    Message,
    Outcome,
    Progress,
    TrialTask,
)
from sweep.search.session import Options, run_study
from sweep.search.sharing import check_device_sharing, list_shapes
from sweep.training.trial import run_trial

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two cores")
BASE: dict[str, Any] = {"data.name": "digits", "data.subset": 256, "budget.epochs": 2}
SPACE: dict[str, Any] = {"batch.micro": {"choice": [32, 64]}, "optimizer.lr": {"log": [1e-3, 0.3]}}


def packed_study(base: dict[str, Any] | None = None, space: dict[str, Any] | None = None, **fields: Any) -> StudySpec:
    plain = {"name": "packed", "trials": 4, "sampler": "qmc", "confirm": {"max_configurations": 0}, **fields}
    return build_study({**plain, "base": {**BASE, **(base or {})}, "space": space or SPACE}, "test")


def learned(said: list[Message]) -> list[tuple[float, float, float]]:
    return [(each.train_loss, each.val_loss, each.val_accuracy) for each in said if isinstance(each, Evaluation)]


def dies(task: TrialTask) -> Iterator[Message]:
    """A trial of seed 1 is killed, one of seed 2 runs out of memory, those of 4 and 5 read a device; others train."""
    if task.config.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task.config.seed == 2:
        yield Ending(outcome="out_of_memory", error="no bytes left")
    elif task.config.seed in (4, 5):
        yield from measures(task)
    else:
        yield from run_trial(task)


@pytest.fixture(scope="module")
def shared_process() -> Iterator[ProcessExecutor]:
    """Its start imports torch and this file, therefore one for all tests."""
    program = WorkerProgram("test_packing:dies", modules=(*PROGRAM.modules, "test_packing"))
    with ProcessExecutor(["cpu"], program=program) as made:
        yield made


@pytest.fixture
def process(shared_process: ProcessExecutor) -> ProcessExecutor:
    shared_process.divide(1)
    return shared_process


@TWO_CORES
def test_what_is_learned_is_the_same_to_the_last_bit_alone_and_beside_another(process: ProcessExecutor) -> None:
    # a sum over another number of threads is another sum, so both have as many
    threads = len(os.sched_getaffinity(0)) // 2
    packed = PackedExecutor(process, process)
    packed.pack(2, "alone", lambda _config: True)
    assert packed.slots == 2
    seeds = range(10, 14)
    together_said: dict[int, list[Message]] = {}
    for first in seeds[::2]:
        for seed in (first, first + 1):
            packed.start(TrialTask(number=seed, config=build_config({**BASE, "seed": seed}, "test")))
        together_said |= endings(packed, 2)
    process.divide(1)
    for seed in seeds:
        process.start(TrialTask(number=seed, config=build_config({**BASE, "seed": seed}, "test"), threads=threads))
        assert learned(endings(process, 1)[seed]) == learned(together_said[seed])
    assert len({tuple(learned(said)) for said in together_said.values()}) == len(seeds)


@TWO_CORES
def test_a_packed_study_has_its_times_from_probes(tmp_path: Path) -> None:
    spec = packed_study(pruner="front", confirm={"max_configurations": 1, "seeds": 1})
    folder = run_study(spec, Options(root=tmp_path, executor=ExecutorSettings(per_device=2, device="cpu")))
    frames = load_frames(folder, evaluations=True)
    trials, probes = frames.trials, frames.probes
    assert frames.evaluations is not None
    trained = trials[trials["outcome"] == "complete"]
    assert len(trained) >= 2
    assert (trials["outcome"].isin(["complete", "pruned"])).all()
    for flags in trials["quality_flags"]:
        assert flags.split(",")[0] == "packed"
    assert set(trained["device"]) == set(probes["device"])  # of one that has all cores
    timed = select_comparable(frames).done
    references = list_references(probes)  # on a busy machine there may be none
    keys = zip(timed["shape_digest"], timed["device"], strict=True)
    assert timed["time_source"].tolist() == ["probe" if key in references else "" for key in keys]
    timed = timed[timed["time_source"] == "probe"]
    for micro, group in timed.groupby("config.batch.micro"):
        (probe,) = probes[probes["micro_batch"] == micro].itertuples()
        assert group["peak_memory_bytes"].tolist() == pytest.approx([probe.peak_memory_bytes] * len(group), rel=0.05)
        assert group["train_seconds"].round(9).nunique() == 1
        assert group["train_seconds"].iloc[0] == pytest.approx(2 * 256 // micro * probe.step_seconds_mean, rel=0.3)
    assert (timed["clock_seconds"] > timed["train_seconds"] / 1.1).all()


def test_a_trial_that_fails_leaves_its_neighbours_alone(process: ProcessExecutor) -> None:
    packed = PackedExecutor(process, process)
    packed.pack(4, "alone", lambda _config: True)
    for seed in range(4):
        packed.start(TrialTask(number=seed, config=build_config({**BASE, "seed": seed}, "test")))
    said = endings(packed, 4)
    expected = [("complete", ""), ("crashed", "SIGKILL"), ("crashed", CROWDED), ("complete", "")]
    assert [(said[seed][-1].outcome, said[seed][-1].cause) for seed in range(4)] == expected
    assert CROWDED in FAULTS_OF_THE_MACHINE  # so that the trial is tried again


def measures(task: TrialTask) -> Iterator[Message]:
    """A trial with readings of its device; one of seed 5 runs out of memory."""
    yield Progress(step=1, num_steps=80, epoch=0.1, images_per_second=5.0, quality_flags=("drift",))
    measured: dict[str, float | int] = {"train_seconds": 40.0, "peak_memory_bytes": 2000, "energy_joules": 7.0}
    outcome: Outcome = "out_of_memory" if task.config.seed == 5 else "complete"
    flags = ("drift", "other_process")
    yield Ending(outcome=outcome, measurements=measured, device="CPU", quality_flags=flags, bottleneck="data_bound")


def test_a_packed_trial_has_its_own_figures_but_for_what_the_device_read(process: ProcessExecutor) -> None:
    packed = PackedExecutor(process, process)
    packed.pack(2, "GPU alone", lambda _config: False)
    for seed in (4, 5):
        packed.start(TrialTask(number=seed, config=TrialConfig(seed=seed)))
    said = endings(packed, 2)
    progress, ending = said[4]
    assert progress.quality_flags == ("packed", "drift")
    assert ending.measurements == {"train_seconds": 40.0, "peak_memory_bytes": 2000}
    assert (ending.device, ending.bottleneck) == ("GPU alone", "")
    assert ending.quality_flags == ("packed", "drift", "other_process")
    assert said[5][-1].outcome == "out_of_memory"  # nobody has seen it fit
    packed.pack(1, "other", lambda _config: True)
    packed.start(TrialTask(number=4, config=TrialConfig(seed=4)))
    alone = endings(packed, 1)[4][-1]  # a trial alone keeps its own figures
    assert (alone.device, alone.quality_flags) == ("CPU", ("drift", "other_process"))
    assert alone.measurements["energy_joules"] == 7.0


def test_each_shape_is_probed_once() -> None:
    more = {"model.name": {"choice": ["resnet8", "vit_micro"]}, "optimizer.weight_decay": {"float": [0.0, 1.0]}}
    wide = packed_study(space={**SPACE, **more})
    shapes = {(config.model.name, config.batch.micro) for config in list_shapes(wide)}
    assert shapes == {(model, micro) for model in ("resnet8", "vit_micro") for micro in (32, 64)}
    assert len(list_shapes(wide)) == 4
    sizes = sorted(config.batch.micro for config in list_shapes(packed_study(space={"batch.micro": {"int": [10, 30]}})))
    assert sizes == [10, 20, 30]


AUTO = {"batch.micro": "auto", "batch.global": 64}
MANY = {"batch.micro": {"choice": list(range(8, 80))}}


@pytest.mark.parametrize(("changes", "word"), [
    ({"objectives": ["val_accuracy", "energy_joules"]}, "energy_joules"),
    ({"objectives": ["val_accuracy", "total_seconds"]}, "total_seconds"),
    ({"trial_timeout": 60.0}, "trial_timeout = 60 s"),
    ({"base": {"budget.seconds": 10.0}}, "budget.seconds"),
    ({"base": {"batch.schedule": "linear"}}, "'linear'"),
    ({"base": {"distributed.world_size": 2}}, "world_size = 2"),
    ({"space": {"optimizer.lr": {"log": [1e-3, 0.3]}}, "base": AUTO}, "batch.micro = 'auto'"),
    ({"space": MANY}, "72 shapes or more"),
])  # fmt: skip
def test_what_would_measure_more_than_accuracy_is_refused(changes: dict[str, Any], word: str) -> None:
    if "budget.seconds" in changes.get("base", {}):
        changes = {**changes, "base": {**changes["base"], "budget.epochs": None}}
    with pytest.raises(InputError, match="per_device = 1") as refused:
        check_device_sharing(packed_study(**changes))
    assert word in str(refused.value)


def test_the_command_refuses_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "packed.toml").write_text("per_device = 2")
    words = ["run", "quickstart", "--root", str(tmp_path / "runs"), "--on", str(tmp_path / "packed.toml")]
    assert run_app([*words, "--set", "trial_timeout=60"]) == 2
    assert "trial_timeout" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
