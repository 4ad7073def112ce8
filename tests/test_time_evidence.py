"""A time that is no evidence: what is recorded in its place, and how what is left counts."""

import math
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of
from frames_factory import make_spec as make_made_spec
from records_factory import make_spec
from table_factory import table_spec

from sweep.analysis.answer.recommend import recommend
from sweep.analysis.comparable_trials import select_comparable
from sweep.analysis.statistics.equal_costs import drop_copied_times, pool_doubtful_times
from sweep.analysis.summary import summarize_configurations
from sweep.config.metrics import METRICS, Metric, list_following
from sweep.config.trial_config import TrialConfig, build_config, flatten_config
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.packed.packed_executor import replace_train_seconds
from sweep.measurement.device import measure_reference_seconds
from sweep.probing.shape import find_largest_accumulation
from sweep.records.messages import Ending, ProbeTask, Task
from sweep.records.probe_record import ProbeRecord
from sweep.records.store.store import open_store
from sweep.records.trial_record import TrialRecord
from sweep.search.earlier.reuse_index import keep_portable
from sweep.search.forecast.prober import Prober, ProbeSettings
from sweep.search.forecast.solo_times import SoloTimes
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.samplers.encoding import Encoding
from sweep.search.samplers.surrogates import Surrogate

DEVICE = "test device"
PER_SAMPLE, UPDATE, NUM_TRAIN = 1e-3, 5e-3, 100


class Machine:
    """Answers probes by a law: seconds by sample and by update, ``pace`` times as long; counts the probes."""

    def __init__(self, pace: float = 1.0, flags: tuple[str, ...] = ()) -> None:
        self.pace, self.flags, self.num_probes = pace, flags, 0

    def run_query(self, task: Task) -> Ending:
        assert isinstance(task, ProbeTask)
        self.num_probes += 1
        count = find_largest_accumulation(task.config)
        step = self.pace * (UPDATE + count * PER_SAMPLE * task.config.micro_batch)
        measured = {
            "step_seconds_median": step,
            "step_seconds_p90": 1.1 * step,
            "step_seconds_mean": step,
            "step_time_error": 0.01,
            "update_seconds": self.pace * UPDATE,
            "num_train": NUM_TRAIN,
        }
        return Ending(outcome="complete", measurements=measured, device=DEVICE, quality_flags=self.flags)

    def solo_times(self, *, can_probe: bool = True) -> SoloTimes:
        prober = Prober(self.run_query, ProbeSettings(device="cpu", device_class=DEVICE))
        return SoloTimes(prober, DEVICE, can_probe=can_probe)


def config(**values: Any) -> TrialConfig:
    return build_config({"batch.micro": 20, "budget.epochs": 4, **values}, "test")


def ending(seconds: float, *flags: str, **changes: Any) -> Ending:
    """A trial of four epochs of 100 images that spent an hour in all, so that a probe is cheap."""
    measured = {"val_accuracy": 0.9, "train_seconds": seconds, "images_per_second": 400 / seconds, "num_epochs": 4.0}
    measured |= {"num_steps": 20, "total_seconds": 3600.0, "step_seconds_median": seconds / 20}
    measured |= {"data_wait_seconds": 0.1, "eval_seconds": 9.0}
    return Ending(outcome="complete", measurements=measured, device=DEVICE, quality_flags=flags, **changes)


ALONE = 20 * (UPDATE + 20 * PER_SAMPLE)  # seconds of the steps of config()


def test_an_uncertain_time_is_replaced_by_that_of_a_solo_probe_which_is_made_once() -> None:
    machine = Machine()
    times = machine.solo_times()
    for number in range(3):
        judged = times.judge(config(seed=number), ending(0.7, "busy_host", "uncertain_time", "spread"), is_idle=True)
        assert judged.measurements["train_seconds"] == pytest.approx(ALONE)
        assert judged.measurements["measured_train_seconds"] == 0.7
        assert judged.measurements["images_per_second"] == pytest.approx(400 / ALONE)
        assert judged.measurements["step_seconds_median"] == pytest.approx(ALONE / 20)
        assert judged.measurements["eval_seconds"] == 9.0
        assert judged.measurements["step_time_error"] == 0.01
        assert judged.quality_flags == ("busy_host", "uncertain_time", "spread", "slower_than_alone", "probed_time")
    assert machine.num_probes == 1


def test_the_replaced_time_is_that_of_all_micro_batches_and_of_smaller_last_steps() -> None:
    # 100 images in steps of 3 x 16: 48, 48 and a last one of 4, which BatchNorm's probe law takes as it is
    wanted = config(**{"batch.micro": 16, "batch.accumulation": 3, "model.norm": "group"})
    ended = ending(0.9, "busy_host", "uncertain_time")
    ended.measurements["num_steps"] = 12
    judged = Machine().solo_times().judge(wanted, ended, is_idle=True)
    assert judged.measurements["train_seconds"] == pytest.approx(4 * (3 * UPDATE + 100 * PER_SAMPLE), rel=0.02)
    until = ending(0.9, "busy_host", "uncertain_time")
    until.measurements.update(steps_to_target=15, seconds_to_target=0.8)
    judged = Machine().solo_times().judge(config(), until, is_idle=True)
    assert judged.measurements["seconds_to_target"] == pytest.approx(0.75 * ALONE)


def test_the_time_to_a_target_of_a_trial_that_shared_its_device_is_by_its_steps() -> None:
    own = {"train_seconds": 4.0, "num_steps": 40, "steps_to_target": 10, "seconds_to_target": 3.0, "eval_seconds": 1.0}
    assert replace_train_seconds(own, 2.0) == {"train_seconds": 2.0, "seconds_to_target": 0.5}


def test_a_time_or_a_rate_states_what_it_follows() -> None:
    silent = [name for name, metric in METRICS.items() if metric.is_speed != (metric.follows is not None)]
    assert silent == [], "state `follows` in the rows of sweep/config/metrics.py, of times and rates only"
    probed = {field.name for field in fields(ProbeRecord)}
    assert set(list_following("probe")) <= probed, "a record of a probe has no such field: follow train_seconds"


def test_a_new_time_and_a_new_rate_follow_the_replaced_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, unit in (("epoch_seconds", "seconds"), ("epochs_per_second", "images/second")):
        monkeypatch.setitem(METRICS, name, Metric(name, unit, None, name, name, follows="train_seconds"))
    ended = ending(0.75, "busy_host", "uncertain_time")
    ended.measurements.update(epoch_seconds=0.25, epochs_per_second=4.0)
    judged = Machine().solo_times().judge(config(), ended, is_idle=True)
    assert judged.measurements["epoch_seconds"] == pytest.approx(ALONE / 3)
    assert judged.measurements["epochs_per_second"] == pytest.approx(3 / ALONE)
    rows = [{"number": 0, "train_seconds": 1.0}, {"number": 1, "seed": 1, "train_seconds": 3.0}]
    rows[1]["quality_flags"] = "busy_host,uncertain_time"
    trials = frames_of(make_made_spec(), rows).trials.assign(epoch_seconds=[0.25, 0.75])
    pooled = pool_doubtful_times(trials)
    assert pooled["epoch_seconds"].tolist() == pytest.approx([0.25, 0.25])


def test_a_trial_that_was_slowed_down_evenly_is_found_by_the_probe_of_its_shape() -> None:
    for sign in ("busy_host", "throttled", "other_process", "clock_drift"):
        slow = Machine().solo_times().judge(config(), ending(1.2 * ALONE, sign), is_idle=True)
        assert slow.quality_flags == (sign, "slower_than_alone", "probed_time")
        assert slow.measurements["train_seconds"] == pytest.approx(ALONE)
        fine = ending(1.08 * ALONE, sign)
        assert Machine().solo_times().judge(config(), fine, is_idle=True) == fine
    calm = Machine()
    unsuspected = ending(1.2 * ALONE)
    assert calm.solo_times().judge(config(), unsuspected, is_idle=True) == unsuspected
    assert calm.num_probes == 0  # nothing gives a reason for one
    with_probe = Machine().solo_times()
    with_probe.judge(config(), ending(ALONE, "busy_host", "uncertain_time"), is_idle=True)
    for calm_time in (unsuspected, ending(1.2 * ALONE, "reference_drift")):
        # nothing ran beside it: short probes are often faster than a training
        assert with_probe.judge(config(), calm_time, is_idle=False) == calm_time


def test_a_time_that_cannot_be_replaced_stays_with_its_flag() -> None:
    doubtful = ending(0.7, "busy_host", "uncertain_time")
    for flag in ("uncertain_time", "busy_host"):  # of the probe: a steady load leaves its time certain, and too long
        disturbed_too = Machine(flags=(flag,))
        times = disturbed_too.solo_times()
        for _ in range(5):
            assert times.judge(config(), doubtful, is_idle=True) == doubtful
        assert disturbed_too.num_probes == 2
    for machine, is_idle, can_probe in ((Machine(), False, True), (Machine(), True, False)):
        assert machine.solo_times(can_probe=can_probe).judge(config(), doubtful, is_idle=is_idle) == doubtful
        assert machine.num_probes == 0
    short = replace(doubtful, measurements=doubtful.measurements | {"total_seconds": 1.0})
    assert Machine().solo_times().judge(config(), short, is_idle=True) == short  # a probe would take as long
    for other in (
        config(**{"batch.schedule": "linear"}),
        config(**{"batch.micro": "auto", "batch.global": 64}),
        config(**{"distributed.world_size": 2}),
    ):
        assert Machine().solo_times().judge(other, doubtful, is_idle=True) == doubtful
    packed = ending(0.7, "packed", "uncertain_time")
    assert Machine().solo_times().judge(config(), packed, is_idle=True) == packed


def test_a_probe_that_took_longer_than_a_trial_is_made_again() -> None:
    machine = Machine(pace=3.0)
    times = machine.solo_times()
    assert times.judge(config(), ending(0.7, "busy_host", "uncertain_time"), is_idle=True).quality_flags == (
        "busy_host",
        "uncertain_time",
    )
    machine.pace = 1.0
    judged = times.judge(config(), ending(0.7, "busy_host", "uncertain_time"), is_idle=True)
    assert (judged.measurements["train_seconds"], machine.num_probes) == (pytest.approx(ALONE), 2)


def test_a_probe_of_a_folder_that_had_fewer_images_makes_no_trial_too_slow() -> None:
    times = Machine().solo_times()
    times.judge(config(), ending(ALONE, "busy_host", "uncertain_time"), is_idle=True)  # the probe was of 100 images
    longer = ending(5 * ALONE)  # four epochs of 500
    longer.measurements["num_steps"] = 100
    assert times.judge(config(), longer, is_idle=True) == longer
    doubtful = replace(longer, quality_flags=("busy_host", "uncertain_time"))
    judged = times.judge(config(), doubtful, is_idle=True)
    assert judged.measurements["train_seconds"] == pytest.approx(5 * ALONE)


def test_a_budget_in_seconds_stays_as_it_was_spent_and_is_flagged() -> None:
    wanted = config(**{"budget.epochs": None, "budget.seconds": 0.7})
    judged = Machine().solo_times().judge(wanted, ending(0.7, "busy_host"), is_idle=True)
    assert judged.measurements["train_seconds"] == 0.7
    assert judged.quality_flags == ("busy_host", "slower_than_alone")


def disturbed(task: Task) -> Any:
    """A trial whose time is uncertain where its number is odd."""
    odd = task.number % 2 == 1
    yield ending(
        0.7 if odd else ALONE, *(("busy_host", "uncertain_time") if odd else ()), environment={"device": DEVICE}
    )


def test_the_record_and_the_sampler_get_the_replaced_time(tmp_path: Path) -> None:
    base = {"batch.micro": 20, "budget.epochs": 4}
    spec = make_spec(
        trials=4, objectives=["val_accuracy", "train_seconds"], confirm={"max_configurations": 0}, sampler="random",
        base=base, space={"optimizer.lr": {"log": [1e-3, 1.0]}},
    )  # fmt: skip
    plan = RunPlan(key_of=lambda each: each.model_dump_json(), solo_times=Machine().solo_times())
    executor = InlineExecutor("cpu", WorkerProgram("test_time_evidence:disturbed", "tuner_runners:describe"))
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        tuner = Tuner(spec, store, executor, plan)
        with executor:
            list(tuner.run())
        recorded = store.trial_records(spec.name)
    for records in (recorded, tuner.records()):
        assert [record.measurements["train_seconds"] for record in records] == pytest.approx([ALONE] * 4)
        assert ["probed_time" in record.quality_flags for record in records] == [False, True, False, True]
        assert [record.measurements.get("measured_train_seconds") for record in records] == [None, 0.7, None, 0.7]


# ---------------------------------------------------------------------- what is left without a probe


def study_rows(num_disturbed: int) -> list[dict[str, Any]]:
    """Twenty trials whose steps cost the same, which differ in the learning rate; some took 1.25 to 2.5 times."""
    draws = np.random.default_rng(1)
    rows = []
    for number in range(20):
        seconds = 10.0 * math.exp(0.01 * draws.standard_normal())
        flagged = number % 2 == 1 and number // 2 < num_disturbed
        factor = draws.uniform(1.25, 2.5) if flagged else 1.0
        row = {"number": number, "config.batch.micro": 64, "config.optimizer.lr": 0.01 * (number + 1)}
        row |= {"val_accuracy": 0.9, "train_seconds": factor * seconds, "images_per_second": 100 / factor / seconds}
        rows.append(row | ({"quality_flags": "uncertain_time,spread", "step_time_error": 0.2} if flagged else {}))
    return rows


def test_with_ten_of_twenty_trials_disturbed_the_time_is_within_a_twentieth() -> None:
    calm, half = (select_comparable(frames_of(make_made_spec(), study_rows(num))) for num in (0, 10))
    truth = calm.posterior("train_seconds").estimates
    assert np.abs(half.posterior("train_seconds").estimates / truth - 1).max() < 0.05
    assert half.posterior("train_seconds").spread.sd < 0.02
    seconds, before = (each.done["train_seconds"].astype(float).to_numpy() for each in (half, calm))
    assert np.abs(seconds / before - 1).max() < 0.05
    assert any("The times of 10 trials are not reliable" in note for note in half.notes)
    summary = summarize_configurations(frames_of(make_made_spec(), study_rows(10)).trials, ["train_seconds"])
    assert summary["train_seconds"].max() < 10.5


def test_times_without_any_evidence_count_by_their_uncertainty() -> None:
    rows = study_rows(0)[:4]
    for row in rows:
        row |= {"quality_flags": "uncertain_time", "step_time_error": 0.4}
    rows[0]["step_time_error"] = 0.02
    rows[0]["train_seconds"] = 20.0
    doubtful = select_comparable(frames_of(make_made_spec(), rows)).posterior("train_seconds")
    assert 15.0 < doubtful.estimates[0] < 20.0  # near the one that is known best
    known = select_comparable(frames_of(make_made_spec(), study_rows(0)[:4])).posterior("train_seconds")
    errors = [posterior.errors[0] * posterior.spread.sd for posterior in (doubtful, known)]
    assert errors[0] > 3 * errors[1]


def test_the_time_of_one_probe_counts_once() -> None:
    rows = study_rows(0)
    for row in rows[4:]:
        row |= {"quality_flags": "uncertain_time,probed_time", "train_seconds": 10.1, "step_time_error": 0.01}
    rows[4] |= {"quality_flags": "packed"}
    found = select_comparable(frames_of(make_made_spec(), rows)).posterior("train_seconds")
    measured = np.log([row["train_seconds"] for row in rows[:4]])
    assert found.spread.sd == pytest.approx(float(measured.std(ddof=1)))
    assert found.spread.degrees == 3
    assert found.errors == pytest.approx(np.full(20, 1 / math.sqrt(5)))
    assert found.centers == pytest.approx(np.full(20, (measured.sum() + math.log(10.1)) / 5))


def test_copies_of_a_probe_are_no_observations() -> None:
    rows = study_rows(0)
    for row in rows:
        row |= {"quality_flags": "uncertain_time,probed_time", "train_seconds": 10.1, "images_per_second": 9.9}
    rows[0] |= {"quality_flags": "uncertain_time", "images_per_second": 5.0}
    rows[1] |= {"quality_flags": "", "images_per_second": 9.5}
    records = select_comparable(frames_of(make_made_spec(), rows))
    kept = drop_copied_times(records.done, records.done["images_per_second"].to_numpy(float))
    assert kept[np.isfinite(kept)].tolist() == [9.5, 9.9]
    assert records.posterior("train_seconds").num_pooled == pytest.approx(np.full(20, 2))


def test_the_interval_of_a_recommended_time_contains_its_doubt() -> None:
    fastest = {"number": 20, "config.batch.micro": 128, "config.optimizer.lr": 0.01, "val_accuracy": 0.9}
    fastest |= {"train_seconds": 3.0, "images_per_second": 30.0}
    intervals = []
    for more in ({}, {"quality_flags": "uncertain_time", "step_time_error": 0.4}):
        seeds = [
            {"number": 20 + seed, "phase": "confirm", "seed": seed, "config.seed": seed, "val_accuracy": 0.9 + gap}
            for seed, gap in ((1, -0.001), (2, 0.0), (3, 0.001))
        ]
        made = frames_of(make_made_spec(), [*study_rows(0), fastest | more, *(fastest | more | each for each in seeds)])
        speed = recommend(made, uses=("speed",)).uses["speed"]
        assert speed.number == 20
        intervals.append(speed.values["train_seconds"])
    assert intervals[0].high / intervals[0].low < 1.1
    assert intervals[1].high / intervals[1].low > 1.4  # four times +-40 %


def test_a_sampler_leaves_out_doubtful_times_of_points_that_have_others() -> None:
    spec = table_spec()
    learner = Surrogate("train_seconds", Encoding(spec), of_shape=True)
    point = next(spec.corners())

    def record(number: int, seconds: float, *flags: str) -> TrialRecord:
        values = {**flatten_config(spec.config(point)), "seed": number}
        measured = {"train_seconds": seconds}
        return TrialRecord(
            number=number, phase="search", values=values, outcome="complete", measurements=measured, quality_flags=flags
        )

    records = [record(0, 1.0), record(1, 9.0, "uncertain_time"), record(2, 1.0)]
    assert learner.fit(records)
    assert np.exp(learner.predict([point]).mean) == pytest.approx([1.0], rel=0.01)
    alone = Surrogate("train_seconds", Encoding(spec), of_shape=True)
    assert alone.fit(records[1:2])
    assert np.exp(alone.predict([point]).mean) == pytest.approx([9.0], rel=0.01)
    alone.set_predictions([point], [2.0])
    assert alone.fit(records[1:2])
    assert np.exp(alone.predict([point]).mean) == pytest.approx([2.0], rel=0.01)


# ---------------------------------------------------------------------- reuse


def test_accuracy_of_a_budget_in_seconds_holds_only_where_its_time_does() -> None:
    machine = {"device": DEVICE}
    fine, doubtful = ending(1.0, "spread", "busy_host"), ending(1.0, "uncertain_time")
    doubtful.measurements["peak_memory_bytes"] = 7
    assert keep_portable(fine, machine, is_timed=True) == fine
    assert keep_portable(doubtful, machine, is_timed=True).measurements == {"peak_memory_bytes": 7}
    assert keep_portable(fine, {"device": "another"}, is_timed=True).measurements == {}
    assert keep_portable(doubtful, {"device": "another"}).measurements["val_accuracy"] == 0.9


def test_the_store_tells_which_trial_had_a_budget_in_seconds(tmp_path: Path) -> None:
    spec = make_spec()
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        for number, budget in enumerate(({"budget.epochs": 1}, {"budget.epochs": None, "budget.seconds": 2.0})):
            store.add_trial(spec.name, number, "search", config(**budget), f"key{number}")
            store.finish_trial(spec.name, number, ending(1.0))
        found = [store.find_by_key(f"key{number}") for number in range(2)]
    assert [each.is_timed for each in found if each] == [False, True]


def test_the_reference_work_takes_several_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweep.measurement import device

    spent: list[float] = []

    def take(_call: Any, num_calls: int, _synchronize: Any) -> float:
        spent.append(0.001 * num_calls)
        return 0.001

    monkeypatch.setattr(device, "time_calls", take)
    assert measure_reference_seconds(torch.device("cpu")) == pytest.approx(0.004)
    assert 0.05 + 0.01 <= sum(spent) <= 0.15
