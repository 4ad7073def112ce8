"""What the time of a trial is: as measured where nothing disturbed it, otherwise the best of what else is known."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames_factory import MadeFrames, frames_of
from frames_factory import make_spec as make_made_spec
from records_factory import make_record, make_spec
from table_factory import table_spec

from reports.evidence import gather_evidence
from sweep.analysis.comparable import ComparableTrials, select_comparable
from sweep.analysis.costs import (
    EQUAL,
    MEASURED,
    PROBED,
    UNDISTURBED,
    WEIGHED,
    apply_times,
    clock_trials,
    estimate_times,
    list_references,
    read_observed,
)
from sweep.analysis.recommendation import recommend
from sweep.config.trial import TrialConfig, build_config, flatten_config
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.probing.prober import Prober, SoloProbes, estimate_record_times
from sweep.probing.shape import derive_shape, digest_trial_shape, find_largest_accumulation
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, ProbeTask, Task
from sweep.records.quality import MEANINGS
from sweep.records.records import ProbeRecord, TrialRecord
from sweep.records.store import open_store
from sweep.search.attempts import RunPlan
from sweep.search.cost_aware import Encoding, Surrogate
from sweep.search.session import keep_portable
from sweep.search.tuner import Tuner

DEVICE = "test device"
PER_SAMPLE, UPDATE, NUM_TRAIN = 1e-3, 5e-3, 100
ALONE = 20 * (UPDATE + 20 * PER_SAMPLE)  # seconds of the steps of config()
DOUBTFUL = "busy_host,uncertain_time"


def config(**values: Any) -> TrialConfig:
    return build_config({"batch.micro": 20, "budget.epochs": 4, **values}, "test")


def measure(seconds: float, num_steps: int = 20) -> dict[str, float | int]:
    """What the clock says of a trial of four epochs of 100 images, in an hour in all, so that a probe is cheap."""
    measured: dict[str, float | int] = {
        "val_accuracy": 0.9, "train_seconds": seconds, "images_per_second": 400 / seconds,
        "tokens_per_second": 25_600 / seconds,
    }  # fmt: skip
    return measured | {"num_steps": num_steps, "num_epochs": 4.0, "total_seconds": 3600.0, "eval_seconds": 9.0}


def trial(seconds: float, flags: str = "", wanted: TrialConfig | None = None, **more: Any) -> dict[str, Any]:
    wanted = wanted or config()
    row = {f"config.{key}": value for key, value in flatten_config(wanted).items()} | measure(seconds)
    row |= {"device": DEVICE, "quality_flags": flags, "shape_digest": digest_trial_shape(wanted)}
    return row | {"global_batch_size": wanted.global_batch_size} | more


def make_probe(wanted: TrialConfig | None = None, pace: float = 1.0, flags: tuple[str, ...] = ()) -> ProbeRecord:
    """The probe of a shape by a law: seconds by sample and by update, ``pace`` times as long."""
    wanted = wanted or config()
    samples = wanted.micro_batch * min(find_largest_accumulation(wanted), 2)
    return ProbeRecord(
        shape_key="key", device=DEVICE, shape=derive_shape(wanted).text,
        step_seconds_mean=pace * (UPDATE + samples * PER_SAMPLE), update_seconds=pace * UPDATE, num_train=NUM_TRAIN,
        quality_flags=flags,
    )  # fmt: skip


def frame_of(probes: Sequence[ProbeRecord]) -> pd.DataFrame:
    rows = [
        vars(each) | {"quality_flags": ",".join(each.quality_flags), "shape_digest": each.shape_digest}
        for each in probes
    ]
    return pd.DataFrame(rows)


def judge(*rows: dict[str, Any], probes: Sequence[ProbeRecord] = ()) -> list[tuple[float, str]]:
    """The time to use of each trial, and where it is from."""
    trials = frames_of(make_made_spec(), [{"number": number} | row for number, row in enumerate(rows)]).trials
    by_frame, by_records = list_references(frame_of(probes)), list_references(probes)
    assert by_frame == by_records
    times = estimate_times(clock_trials(trials), by_frame)
    return [(pytest.approx(seconds), str(source)) for seconds, source in zip(times.seconds, times.sources, strict=True)]


SLOWED = {"slowdown_by_others": 0.4}


@pytest.mark.parametrize(("rows", "probes", "expected"), [
    # what nothing disturbed is as measured, whatever the probes say
    ([trial(0.6, "spread,drift,few_steps"), trial(0.6)], [make_probe()], [(0.6, MEASURED)] * 2),
    ([trial(0.7, DOUBTFUL)], [make_probe()], [(ALONE, PROBED)]),
    ([trial(0.7, DOUBTFUL)], [make_probe(config(seed=3), flags=("few_steps",))], [(ALONE, PROBED)]),
    # its own undisturbed windows are closer to it than any probe, unless their mean is uncertain
    ([trial(0.7, "slowed_by_others,busy_host", **SLOWED)], [make_probe(pace=0.7)], [(0.5, UNDISTURBED)]),
    ([trial(0.7, f"slowed_by_others,{DOUBTFUL}", **SLOWED)], [make_probe()], [(ALONE, PROBED)]),
    ([trial(0.7, "slowed_by_others")], [], [(0.7, "")]),  # a flag without its figure
    # equal trials are closer to it than a probe
    ([trial(0.52), trial(0.9, DOUBTFUL, seed=1)], [make_probe()], [(0.52, MEASURED), (0.52, EQUAL)]),
    ([trial(0.52), trial(0.9, "uncertain_time", seed=1)], [make_probe()], [(0.52, MEASURED), (0.9, WEIGHED)]),
    ([*[trial(0.52)] * 3, trial(0.9, "uncertain_time", seed=1)], [], [*[(0.52, MEASURED)] * 3, (0.52, EQUAL)]),
    ([trial(0.52), trial(0.9, "uncertain_time,packed", seed=1)], [], [(0.52, MEASURED), (0.52, EQUAL)]),
    ([trial(0.7, "uncertain_time")] * 2, [], [(0.7, "")] * 2),
    ([trial(0.7, "uncertain_time")] * 3, [], [(0.7, WEIGHED)] * 3),
    ([trial(0.7, "uncertain_time")] * 3, [make_probe()], [(ALONE, PROBED)] * 3),
    ([trial(0.52), trial(0.9, DOUBTFUL, device="other")], [make_probe()], [(0.52, MEASURED), (0.9, "")]),
    ([trial(0.52), trial(0.9, DOUBTFUL, config(**{"model.norm": "group"}))], [], [(0.52, MEASURED), (0.9, "")]),
    ([trial(0.9, "packed"), trial(0.8, "packed")], [make_probe()], [(ALONE, PROBED)] * 2),
    ([trial(0.7, "a doubt of another version")], [], [(0.7, "")]),
    # a trial that another load slowed down evenly
    *(
        ([trial(1.2 * ALONE, sign)], [make_probe()], [(ALONE, PROBED)])
        for sign in ("busy_host", "throttled", "other_process")
    ),
    ([trial(1.08 * ALONE, "busy_host")], [make_probe()], [(1.08 * ALONE, MEASURED)]),
    ([trial(1.2 * ALONE, "busy_host,few_steps")], [make_probe()], [(1.2 * ALONE, MEASURED)]),
    ([trial(1.2 * ALONE, "reference_drift")], [make_probe()], [(1.2 * ALONE, MEASURED)]),  # nothing ran beside it
    # no references: disturbed probes, those of other shapes and devices, and one that took longer than a training
    ([trial(0.7, DOUBTFUL)], [make_probe(flags=("uncertain_time",))], [(0.7, "")]),
    ([trial(0.7, DOUBTFUL)], [make_probe(flags=("busy_host",))], [(0.7, "")]),
    ([trial(0.7, DOUBTFUL)], [replace(make_probe(), outcome="out_of_memory")], [(0.7, "")]),
    ([trial(0.7, DOUBTFUL)], [make_probe(config(**{"batch.micro": 10}))], [(0.7, "")]),
    ([trial(0.7, DOUBTFUL)], [replace(make_probe(), device="other")], [(0.7, "")]),
    ([trial(0.7, "slowed_by_others")], [make_probe(pace=2.0)], [(0.7, "")]),
    # others make no training faster: a probe that took longer than a slowed one was slowed itself
    ([trial(0.96 * ALONE, "slowed_by_others"), trial(0.7, "slowed_by_others")], [make_probe()],
     [(0.96 * ALONE, ""), (0.7, "")]),
    ([trial(0.96 * ALONE, "uncertain_time")], [make_probe()], [(ALONE, PROBED)]),
    ([trial(1.04 * ALONE, "slowed_by_others")], [make_probe()], [(ALONE, PROBED)]),
    # so few steps do not tell what the waiting cost
    ([trial(0.7, "few_steps,processor_wait")], [], [(0.7, "")]),
    ([trial(0.7, "processor_wait")], [], [(0.7, MEASURED)]),
    # what was to be spent
    ([trial(0.7, DOUBTFUL, config(**{"budget.epochs": None, "budget.seconds": 0.7}))], [make_probe()], [(0.7, "")]),
    # of several shapes
    ([trial(0.7, DOUBTFUL, config(**{"batch.schedule": "linear"}))], [make_probe()], [(0.7, "")]),
    ([trial(0.7, DOUBTFUL, config(**{"batch.micro": "auto", "batch.global": 20}))], [make_probe()], [(0.7, "")]),
    # a longer training than the probe's data set would have
    ([trial(5.5 * ALONE, DOUBTFUL, num_steps=100, images_per_second=2000 / 5.5 / ALONE)], [make_probe()],
     [(5 * ALONE, PROBED)]),
])  # fmt: skip
def test_the_time_to_use(rows: list[dict[str, Any]], probes: list[ProbeRecord], expected: list[Any]) -> None:
    assert judge(*rows, probes=probes) == expected


def test_a_probe_of_two_micro_batches_stands_for_many_and_for_smaller_last_steps() -> None:
    # 100 images in steps of 3 x 16: 48, 48 and a last one of 4
    wanted = config(**{"batch.micro": 16, "batch.accumulation": 3, "model.norm": "group"})
    row = trial(0.9, DOUBTFUL, wanted, num_steps=12)
    ((seconds, source),) = judge(row, probes=[make_probe(wanted)])
    assert (seconds, source) == (4 * (3 * UPDATE + 100 * PER_SAMPLE), PROBED)


def test_times_of_probes_are_multiplied_by_the_usual_ratio_of_undisturbed_trials_to_them() -> None:
    others = [trial(seconds, "", config(**{"batch.micro": size})) for size, seconds in ((10, 0.6), (25, 0.48))]
    probes = [make_probe(config(**{"batch.micro": size}), pace=0.8) for size in (10, 20, 25, 50)]
    row = trial(1.4 * ALONE, DOUBTFUL)
    assert judge(*others, row, probes=probes)[-1] == (0.8 * ALONE, PROBED)  # of two, nothing is usual
    others[0] |= measure(40 * UPDATE + 0.4, 40)
    others[1] |= measure(16 * UPDATE + 0.4, 16)
    more = trial(1.0, "", config(**{"batch.micro": 50})) | measure(8 * UPDATE + 0.4, 8)
    assert judge(*others, more, row, probes=probes)[-1] == (ALONE, PROBED)
    assert judge(*others, more, row | {"device": "other"}, probes=[*probes, replace(probes[1], device="other")])[
        -1
    ] == (0.8 * ALONE, PROBED)  # the ratio of one device is not that of another
    slowed = trial(0.9 * ALONE, "slowed_by_others")  # above the probe, but not above what trainings take by it
    assert judge(*others, more, slowed, probes=probes)[-1] == (0.9 * ALONE, "")


def test_a_probe_with_any_flag_but_few_steps_is_no_reference() -> None:
    assert {flag for flag in MEANINGS if list_references([make_probe(flags=("few_steps", flag))])} == {"few_steps"}


def test_times_that_others_slowed_count_by_the_shortest_and_are_known_to_a_factor() -> None:
    # as measured on a busy machine: the probe of 128 was disturbed as well, and above two of the trainings
    seconds = {64: (3.161, 3.06, 3.061, 3.151), 128: (3.21, 3.4, 2.392, 2.407)}
    flags = "processor_wait,busy_host,slowed_by_others"
    shapes = [(each, micro, index) for micro, times in seconds.items() for index, each in enumerate(times)]
    rows = [
        trial(each, flags, config(**{"batch.micro": micro, "optimizer.lr": 0.01 * (index + 1)}), step_time_error=0.03)
        for each, micro, index in shapes
    ]
    probe = make_probe(config(**{"batch.micro": 128}))
    probe = replace(probe, step_seconds_mean=3.477 / 20, update_seconds=3.477 / 20)
    made = frames_of(make_made_spec(), [{"number": number} | row for number, row in enumerate(rows)])
    records = select_comparable(replace(made, probes=frame_of([probe])))  # type: ignore[arg-type]
    assert records.has_doubtful_time.all()
    assert records.done["train_seconds"].tolist() == [*seconds[64], *seconds[128]]
    assert records.done["time_counts"].tolist() == [
        each in (3.06, 2.392) for times in seconds.values() for each in times
    ]
    found = records.posterior("train_seconds")
    firsts = [records.done["config.batch.micro"].tolist().index(micro) for micro in seconds]
    small, large = (records.grouping.members[row] for row in firsts)
    assert found.estimates[[small, large]] == pytest.approx([3.06, 2.392])
    draws = found.draw(np.array([small, large]), 2000, np.random.default_rng(0))
    low, high = np.quantile(draws[:, 1] / draws[:, 0], (0.025, 0.975))
    assert low < 0.4 < 1.5 < high


def test_a_time_is_the_same_in_the_table_and_in_the_answer() -> None:
    # the ratio of trainings to probes is known from the other data set, whose trials are fewer
    sizes = [config(**{"batch.micro": size}) for size in (5, 10, 20, 25, 50)]
    rows = [trial(1.3 * 400 / each.micro_batch * (UPDATE + each.micro_batch * PER_SAMPLE), "", each) for each in sizes]
    rows = [row | {"num_steps": 400 / each.micro_batch} for row, each in zip(rows, sizes, strict=True)]
    rows = [row | {"config.data.name": "cifar10", "number": number} for number, row in enumerate(rows[:3])]
    others = [config(**{"batch.micro": 40, "optimizer.lr": 0.01 * number}) for number in range(1, 5)]
    rows += [
        trial(0.9, DOUBTFUL, each, number=3 + number, num_steps=10, **{"config.optimizer.lr": 0.01 * number})
        for number, each in enumerate(others, 1)
    ]
    made = frames_of(make_made_spec(), rows)
    made = replace(made, probes=frame_of([make_probe(each) for each in (*sizes[:3], others[0])]))
    evidence = gather_evidence(made)  # type: ignore[arg-type]
    answered = select_comparable(made).done.set_index("number")["train_seconds"]  # type: ignore[arg-type]
    expected = pytest.approx(1.3 * (10 * UPDATE + 0.4))
    assert len(answered) == 4
    assert all(seconds == expected for seconds in answered)
    assert evidence.trials.set_index("number")["train_seconds"].loc[answered.index].tolist() == answered.tolist()
    table = evidence.configurations.set_index("number")["train_seconds_search"]
    assert table.loc[answered.index].tolist() == answered.tolist()


def test_what_depends_on_the_training_time_changes_with_it_and_the_clock_stays_on_record() -> None:
    until = {"steps_to_target": 10, "seconds_to_target": 0.35}
    rows = [{"number": 0} | trial(0.7, DOUBTFUL, **until), {"number": 1, "outcome": "pruned"} | trial(0.1, DOUBTFUL)]
    made = apply_times(frames_of(make_made_spec(), rows).trials, frame_of([make_probe()]))
    assert made["train_seconds"].tolist() == pytest.approx([ALONE, 0.1])
    assert made["clock_seconds"].tolist() == [0.7, 0.1]
    for name, samples in (("images_per_second", 400), ("tokens_per_second", 25_600)):
        assert made[name].iloc[0] == pytest.approx(samples / ALONE)
    assert made["seconds_to_target"].iloc[0] == pytest.approx(ALONE / 2)
    assert made["eval_seconds"].iloc[0] == 9.0
    assert made["time_source"].tolist() == [PROBED, ""]


def test_each_time_until_a_target_is_an_observation_of_its_own() -> None:
    wanted = config(**{"budget.epochs": None, "budget.target": 0.8, "budget.max_epochs": 4})
    rows = [
        trial(0.9, DOUBTFUL, wanted, number=seed, seed=seed, num_steps=5 * seed, images_per_second=100 * seed / 0.9)
        | {"config.seed": seed}
        for seed in (1, 2)
    ]
    made = apply_times(frames_of(make_made_spec(), rows).trials, frame_of([make_probe()]))
    assert made["train_seconds"].tolist() == pytest.approx([0.25 * ALONE, 0.5 * ALONE])
    assert made["time_counts"].tolist() == [True, True]


# --- the answer


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
        row |= {"num_steps": 20, "shape_digest": "shape"}
        rows.append(row | ({"quality_flags": "uncertain_time,spread", "step_time_error": 0.2} if flagged else {}))
    return rows


def compare(rows: list[dict[str, Any]], probe_seconds: float | None = None) -> ComparableTrials:
    made: MadeFrames = frames_of(make_made_spec(), rows)
    if probe_seconds is not None:
        row = {"shape_digest": "shape", "device": "cpu: made", "shape": '{"batch.micro": 1}', "outcome": "complete"}
        row |= {"step_seconds_mean": probe_seconds / 20, "update_seconds": probe_seconds / 20, "quality_flags": ""}
        made = replace(made, probes=pd.DataFrame([row]))
    return select_comparable(made)  # type: ignore[arg-type]


def test_times_that_cannot_be_used_for_certain_count_by_their_uncertainty() -> None:
    rows = study_rows(0)[:4]
    for row in rows:
        row |= {"quality_flags": "uncertain_time", "step_time_error": 0.4}
    rows[0] |= {"step_time_error": 0.02, "train_seconds": 12.0}
    records = compare(rows)
    doubtful = records.posterior("train_seconds")
    assert not records.has_doubtful_time.any()  # three or more of them are worth as much as they agree
    assert compare(rows[:2]).has_doubtful_time.all()
    assert 11.0 < doubtful.estimates[0] < 12.0  # nearer to the one that is known best, of 12 and three of about 10
    assert (np.ptp(doubtful.estimates), doubtful.num_pooled.tolist()) == (0.0, [4] * 4)  # all are of equal cost
    known = compare(study_rows(0)[:4]).posterior("train_seconds")
    errors = [posterior.errors[0] * posterior.spread.sd for posterior in (doubtful, known)]
    assert errors[0] > 3 * errors[1]


def test_one_reliable_time_does_not_outweigh_many_uncertain_ones() -> None:
    # a real demo: one of eight trainings had no doubt, and was the fastest
    clock = {256: (1.51, 1.44, 1.3, 1.13, 1.26, 1.04, 1.16, 0.9), 128: (1.2, 1.52, 1.28, 1.53, 1.48, 1.6)}
    sure = {(256, 0.9), (128, 1.52)}
    rows = [
        {"number": number, "seed": number, "config.batch.micro": batch, "global_batch_size": batch,
         "val_accuracy": 0.9, "train_seconds": seconds, "step_time_error": 0.15, "device": DEVICE,
         "quality_flags": "" if (batch, seconds) in sure else "uncertain_time"}
        for number, (batch, seconds) in enumerate((batch, each) for batch, many in clock.items() for each in many)
    ]  # fmt: skip
    records = compare(rows)
    posterior = records.posterior("train_seconds")
    large, small = (int(np.argmax(records.frame["config.batch.micro"] == batch)) for batch in (256, 128))
    assert posterior.estimates[small] / posterior.estimates[large] < 1.3  # 1.69 by the two alone
    assert posterior.spread.degrees == 12
    assert posterior.spread.sd == pytest.approx(0.14, abs=0.03)


def test_the_time_of_one_probe_counts_once() -> None:
    rows = study_rows(0)
    for row in rows:
        row |= {"quality_flags": "uncertain_time", "step_time_error": 0.3}
    records = compare(rows, probe_seconds=9.0)
    found = records.posterior("train_seconds")
    assert found.num_pooled == pytest.approx(np.full(20, 1))
    assert found.estimates == pytest.approx(np.full(20, 9.0))
    assert not records.has_doubtful_time.any()
    rates = read_observed("images_per_second", records.done)
    assert np.isfinite(rates).sum() == 1


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


# --- the search


class Machine:
    """Answers probes by the law of :func:`make_probe`, and counts them."""

    def __init__(self, pace: float = 1.0, flags: tuple[str, ...] = ()) -> None:
        self.pace, self.flags, self.num_probes = pace, flags, 0

    def run_query(self, task: Task) -> Ending:
        assert isinstance(task, ProbeTask)
        self.num_probes += 1
        made = make_probe(task.config, self.pace)
        measured = {name: getattr(made, name) for name in ("step_seconds_mean", "update_seconds", "num_train")}
        return Ending(outcome="complete", measurements=measured, device=DEVICE, quality_flags=self.flags)

    def solo_probes(self, *, can_probe: bool = True) -> SoloProbes:
        prober = Prober(self.run_query, device="cpu", device_class=DEVICE)
        return SoloProbes(prober, DEVICE, can_probe=can_probe)


def record_of(seconds: float, *flags: str, number: int = 0, wanted: TrialConfig | None = None) -> TrialRecord:
    wanted = wanted or config()
    more = {"shape_digest": digest_trial_shape(wanted), "device": DEVICE, "quality_flags": flags}
    return make_record(wanted, measure(seconds), number, **more)


DISTURBED = record_of(0.7, "busy_host", "uncertain_time")


@pytest.mark.parametrize(("record", "machine", "num_expected"), [
    (DISTURBED, Machine(), 1),
    (record_of(1.2 * ALONE, "throttled"), Machine(), 1),  # it may have been slowed down evenly
    (record_of(1.2 * ALONE), Machine(), 0),  # nothing gives a reason for one
    (DISTURBED, Machine(flags=("busy_host",)), 2),  # the first is no reference, and two are the most
    (DISTURBED, Machine(pace=3.0), 2),  # it took longer than a trial
    (record_of(0.7, "packed"), Machine(), 1),
    (replace(DISTURBED, measurements=DISTURBED.measurements | {"total_seconds": 1.0}), Machine(), 0),  # it costs more
    (replace(DISTURBED, device="other"), Machine(), 0),
    (replace(DISTURBED, outcome="diverged"), Machine(), 0),
    (record_of(0.7, "uncertain_time", wanted=config(**{"batch.schedule": "linear"})), Machine(), 0),
])  # fmt: skip
def test_disturbed_shapes_are_probed_to_a_reference(record: TrialRecord, machine: Machine, num_expected: int) -> None:
    probes = machine.solo_probes()
    for _ in range(4):
        probes.note(record, is_idle=True)
    assert machine.num_probes == num_expected
    for is_idle, can_probe in ((False, True), (True, False)):
        busy = Machine()
        busy.solo_probes(can_probe=can_probe).note(record, is_idle=is_idle)
        assert busy.num_probes == 0


def disturbed(task: Task) -> Any:
    """A trial whose time is uncertain where its number is odd."""
    is_odd = task.number % 2 == 1
    flags = ("busy_host", "uncertain_time") if is_odd else ()
    measured = measure(0.7 if is_odd else ALONE)
    yield Ending(
        outcome="complete", measurements=measured, device=DEVICE, quality_flags=flags, environment={"device": DEVICE}
    )


def test_the_record_has_the_clocks_time_and_the_sampler_the_one_to_use(tmp_path: Path) -> None:
    base = {"batch.micro": 20, "budget.epochs": 4}
    spec = make_spec(
        trials=4, objectives=["val_accuracy", "train_seconds"], confirm={"max_configurations": 0}, sampler="random",
        base=base, space={"optimizer.lr": {"log": [1e-3, 1.0]}},
    )  # fmt: skip
    learned: list[TrialRecord] = []

    class Sampler:
        def __init__(self, records: Sequence[TrialRecord]) -> None:
            learned[:] = records

        def propose(self, index: int) -> dict[str, Any]:
            return {"optimizer.lr": 0.01 * (index + 1)}

        def learn(self, record: TrialRecord) -> None:
            learned.append(record)

    plan = RunPlan(
        key_of=lambda each: each.model_dump_json(),
        make_sampler=lambda _spec, records: Sampler(records),  # type: ignore[arg-type,return-value]
        solo_probes=Machine().solo_probes(),
    )
    executor = InlineExecutor("cpu", WorkerProgram("test_costs:disturbed", "tuner_runners:describe"))
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        tuner = Tuner(spec, store, executor, plan)
        with executor:
            list(tuner.run())
        recorded = store.trial_records(spec.name)
        for records in (recorded, tuner.records()):
            assert [each.measurements["train_seconds"] for each in records] == [ALONE, 0.7, ALONE, 0.7]
        seen = [each.measurements["train_seconds"] for each in learned]
        assert seen == pytest.approx([ALONE] * 4)
        Tuner(spec, store, executor, plan)  # continued
        assert [each.measurements["train_seconds"] for each in learned] == pytest.approx([ALONE] * 4)
    assert set(load_frames(tmp_path / "study.sqlite").trials["shape_digest"]) == {digest_trial_shape(config())}


def test_a_sampler_leaves_out_doubtful_times_of_points_that_have_others() -> None:
    spec = table_spec()
    learner = Surrogate("train_seconds", Encoding(spec))
    point = spec.corners.anywhere
    wanted = spec.config(point)
    records = [
        record_of(1.0, wanted=wanted),
        record_of(9.0, "uncertain_time", number=1, wanted=wanted.model_copy(update={"seed": 1})),
        record_of(1.0, number=2, wanted=wanted.model_copy(update={"seed": 2})),
    ]
    for known in (
        estimate_record_times(records, spec, []),
        [*estimate_record_times(records[1:2], spec, []), records[0]],
    ):
        assert learner.fit(known)
        assert np.exp(learner.predict([point]).mean) == pytest.approx([1.0], rel=0.01)
    alone = Surrogate("train_seconds", Encoding(spec))
    (doubtful,) = estimate_record_times(records[1:2], spec, [])
    assert doubtful.errors["train_seconds"] == pytest.approx(0.9)
    assert alone.fit([doubtful])
    assert np.exp(alone.predict([point]).mean) == pytest.approx([9.0], rel=0.01)


# --- reuse


def test_accuracy_of_a_budget_in_seconds_holds_only_where_its_time_does() -> None:
    machine = {"device": DEVICE}

    def ending(*flags: str, **more: float) -> Ending:
        return Ending(outcome="complete", measurements=measure(1.0) | more, device=DEVICE, quality_flags=flags)

    fine, doubtful = ending("spread", "busy_host"), ending("uncertain_time", peak_memory_bytes=7)
    assert keep_portable(fine, machine, is_timed=True) == fine
    assert keep_portable(doubtful, machine, is_timed=True).measurements == {"peak_memory_bytes": 7}
    assert keep_portable(fine, {"device": "another"}, is_timed=True).measurements == {}
    assert keep_portable(doubtful, {"device": "another"}).measurements["val_accuracy"] == 0.9
    slowed = ending("slowed_by_others", **SLOWED)
    assert keep_portable(slowed, machine) == slowed  # its undisturbed windows go with it
    assert "train_seconds" not in keep_portable(slowed, machine, is_timed=True).measurements


def test_times_of_equal_cost_are_pooled_however_much_they_scatter() -> None:
    """Unless configurations differ by more than repeats of each do."""
    draws = np.random.default_rng(2)
    rows = [
        row | {"number": 3 * row["number"] + seed, "seed": seed, "config.seed": seed, "train_seconds": 10.0 * noise}
        | ({"phase": "confirm"} if seed else {})
        for row in study_rows(0)[:6]
        for seed, noise in enumerate(np.exp(0.25 * draws.standard_normal(3)))
    ]  # fmt: skip
    alike = compare(rows).posterior("train_seconds")
    assert (np.ptp(alike.estimates), alike.num_pooled is None) == (0.0, False)
    for row in rows[:3]:
        row["train_seconds"] *= 3.0
    apart = compare(rows).posterior("train_seconds")
    assert apart.num_pooled is None
    assert apart.estimates[0] > 1.5 * apart.estimates[1:].max()
