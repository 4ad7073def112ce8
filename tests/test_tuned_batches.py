"""What tuned training costs at each effective batch size, against curves that are known."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of, make_frames, make_spec

from sweep.analysis import recommend
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import Candidates, select_candidates
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import evaluate_claims
from sweep.analysis.response import list_batches
from sweep.analysis.statistics import Interval
from sweep.analysis.tuned_batches import combine_ratio, find_common_target, fix_batch, list_models
from sweep.config.trial import flatten_config
from sweep.search.cost_aware import Encoding


def trial(number: int, batch: int, accuracy: float, seed: int = 0) -> dict[str, Any]:
    keys = {"config.model.name": "resnet8", "config.batch.micro": batch, "config.optimizer.lr": 0.1}
    keys |= {"config.seed": seed, "seed": seed, "phase": "confirm" if seed else "search"}
    values = {"val_accuracy": accuracy, "train_seconds": 1600.0 / batch, "peak_memory_bytes": 2.0**20 * batch}
    return keys | values | {"number": number, "global_batch_size": batch, "num_steps": 200}


def make_study() -> Any:
    accuracies = {16: 0.950, 32: 0.951, 64: 0.949, 128: 0.800}
    rows = [trial(place, batch, accuracy) for place, (batch, accuracy) in enumerate(accuracies.items())]
    for batch, accuracy in accuracies.items():
        rows += [trial(len(rows) + seed - 1, batch, accuracy + (seed - 2) * 1e-3, seed) for seed in (1, 2, 3)]
    frames = frames_of(make_spec(space={"batch.micro": {"choice": list(accuracies)}}), rows)
    points = frames.evaluations
    # straight lines from 0 at step 0 to the accuracy at step 200
    ends = points["number"].map({row["number"]: row["val_accuracy"] for row in rows})
    return dataclasses.replace(frames, evaluations=points.assign(val_accuracy=ends * points["step"] / 200))


def test_steps_and_time_to_the_common_target() -> None:
    answer = recommend(make_study()).batch_size
    assert answer is not None
    (model,) = answer.models
    # of four batches three reach it
    assert model.target_accuracy == pytest.approx(0.944, abs=0.003)
    for point in answer.curve[:3]:
        middle = {16: 0.950, 32: 0.951, 64: 0.949}[point.batch]
        steps = 200 * model.target_accuracy / middle
        assert point.steps_to_target.median == pytest.approx(steps)
        assert point.steps_to_target.low < steps < point.steps_to_target.high
        assert (point.steps_to_target.n, point.num_steps) == (
            3,
            Interval(pytest.approx(200), *[pytest.approx(200)] * 2, 3),
        )
        assert point.samples_to_target.median == pytest.approx(70 * steps)  # 1,400 samples every 20 steps
        assert point.num_samples.median == pytest.approx(14_000)
        assert point.seconds_to_target.median == pytest.approx(1600 / point.batch * steps / 200)
        assert point.seconds_to_target.low <= point.seconds_to_target.median <= point.seconds_to_target.high
        assert point.images_per_second.median == pytest.approx(14_000 * point.batch / 1600)
        assert not [remark for remark in point.remarks if "reach" in remark]


def test_a_batch_that_did_not_reach_the_target_has_no_steps_to_it() -> None:
    answer = recommend(make_study()).batch_size
    assert answer is not None
    last = answer.curve[3]
    for value in (last.steps_to_target, last.samples_to_target, last.seconds_to_target):
        assert (math.isnan(value.median), value.n) == (True, 0)
    shown = f"{100 * answer.models[0].target_accuracy:.1f} %"
    assert f"3 of 3 trainings did not reach {shown}, so the steps and time to it are unknown" in last.remarks
    assert last.num_steps.median == pytest.approx(200)


@pytest.mark.parametrize(("least_step", "end", "reason"), [
    (None, 0, "the evaluations are not loaded, so"),
    (201, 0, "no evaluation is on record, so"),
    (201, 5, "no evaluation is on record of 2 of 3 trainings, so"),
    (200, 0, "the only evaluation of 3 of 3 trainings was at "),
    (20, 0, ""),
    (199, 5, "the only evaluation of 2 of 3 trainings was at "),
])  # fmt: skip
def test_why_steps_to_the_target_are_not_known(least_step: int | None, end: int, reason: str) -> None:
    study = make_study()
    points = study.evaluations  # up to the number ``end`` all of them
    kept = None if least_step is None else points[(points["step"] >= least_step) | (points["number"] < end)]
    answer = recommend(dataclasses.replace(study, evaluations=kept)).batch_size
    assert answer is not None
    remarks = [remark for remark in answer.curve[0].remarks if remark.endswith("unknown")]
    assert [remark[: len(reason)] for remark in remarks] == [reason] * bool(reason)


def test_a_loss_had_reached_the_target_with_less() -> None:
    study = make_study()
    lossy = [
        table.assign(val_loss=1 - table["val_accuracy"], val_accuracy=None)
        for table in (study.trials, study.evaluations)
    ]
    spec = make_spec(space=study.spec.space, script={"command": "train", "metric": "val_loss"})
    last = lossy[1][lossy[1]["step"] == 200]
    answer = recommend(dataclasses.replace(study, spec=spec, trials=lossy[0], evaluations=last)).batch_size
    assert answer is not None
    assert [remark for remark in answer.curve[0].remarks if " nats or less, so the steps and time" in remark]


def test_the_common_target_is_what_three_quarters_of_the_batches_reach() -> None:
    assert find_common_target(np.array([0.9, 0.95, 0.5, 0.93]), 0.005) == pytest.approx(0.895)
    assert find_common_target(np.array([0.9, 0.95]), 0.005) == pytest.approx(0.895)
    assert math.isnan(find_common_target(np.empty(0), 0.005))


def test_errors_of_time_and_of_the_share_of_it_are_joined() -> None:
    found = combine_ratio(Interval(10.0, 10.0 / 1.3, 13.0, 5), Interval(0.5, 0.5 / 1.4, 0.7, 3))
    assert (found.median, found.n) == (5.0, 3)
    assert found.high == pytest.approx(5 * math.exp(math.hypot(math.log(1.3), math.log(1.4))))


def test_the_power_of_the_rate_is_the_findings() -> None:
    frames = make_frames(160, confirm=3)
    found = {item.name: item for item in evaluate_claims(frames)}["lr_rule_linear"]
    answer = recommend(frames).batch_size
    assert answer is not None
    (model,) = (each for each in answer.models if found.detail.startswith(each.model))
    assert found.effect == pytest.approx(1.0, abs=0.3)  # the best rate of the made study follows the batch
    assert model.rate_power == (found.effect, found.low, found.high, found.n)
    few = recommend(make_frames(12, confirm=1)).batch_size
    assert few is not None
    assert all(math.isnan(each.rate_power.median) and "required" in each.rate_lack for each in few.models)


# of which those at both ends were stopped; the more of the others, the more is known of what was not tried
_FEW_RATES, _MORE_RATES = (1e-4, 1e-2, 1e-1, 1.0, 1e2), (1e-4, 1e-2, 3e-2, 1e-1, 1.0, 1e2)


def draw_with_stopped(rates: tuple[float, ...], outcome: str | None, untried: float | None = None) -> Candidates:
    """Three batch sizes with complete trainings at the inner ``rates``, but for the ``untried`` one; those at both ends
    ended with ``outcome``."""
    spec = make_spec(space={"batch.micro": {"choice": [16, 32, 64]}, "optimizer.lr": {"choice": list(rates)}})
    rows: list[dict[str, Any]] = []
    for batch, rate in itertools.product((16, 32, 64), rates):
        is_whole = rate in rates[1:-1]
        if rate == untried:
            continue
        for seed in range(4 if is_whole else 1):
            accuracy = 0.95 - 0.0004 * batch - 0.02 * abs(math.log10(rate) + 1) + 1e-3 * (seed % 3)
            row = trial(len(rows), batch, accuracy, seed) | {"config.optimizer.lr": rate}
            ended = row if is_whole else row | {"outcome": outcome, "val_accuracy": None, "train_seconds": 1.0}
            rows += [ended] if is_whole or outcome else []
    found = select_candidates(select_comparable(frames_of(spec, rows)), Limits())  # type: ignore[arg-type]
    assert found is not None
    return found


def chance_of_untried(candidates: Candidates) -> float:
    best = candidates.values(candidates.quality, candidates.draws).max(axis=1, keepdims=True)
    return float((candidates.untried.accuracies > best).any(axis=1).mean())


@pytest.mark.parametrize("rates", [_FEW_RATES, _MORE_RATES])
def test_what_was_stopped_is_no_open_chance(rates: tuple[float, ...]) -> None:
    unknown = chance_of_untried(draw_with_stopped(rates, None))
    assert unknown > 0.05  # two decades away from all that was tried
    for outcome in ("pruned", "diverged"):
        assert chance_of_untried(draw_with_stopped(rates, outcome)) < unknown / 10, outcome
    # a training that ended for another reason tells nothing
    assert chance_of_untried(draw_with_stopped(rates, "crashed")) == unknown
    assert draw_with_stopped(rates, "diverged").untried.batches.tolist() == []


def test_what_was_pruned_tells_about_what_was_not_tried() -> None:
    rates = (1e-3, 1e-2, 1e-1, 1.0, 3.0, 1e2)  # 9 settings are complete
    pruned, crashed = (chance_of_untried(draw_with_stopped(rates, outcome, 3.0)) for outcome in ("pruned", "crashed"))
    assert pruned < crashed / 3


@pytest.mark.parametrize(("batch", "smallest", "largest", "count"), [
    ({"batch.micro": {"int": [16, 20]}}, 16, 20, 5),
    # too many to look at each: some stand for all
    ({"batch.micro": {"int": [16, 144]}}, 16, 144, 32),
    ({"batch.micro": {"int": [1, 10**6]}}, 1, 10**6, 32),
    ({"batch.micro": {"int": [1, 64]}, "batch.accumulation": {"int": [1, 64]}}, 1, 4096, 32),
    ({"batch.micro": {"log2": [4, 6]}, "distributed.world_size": {"choice": [1, 2]}}, 16, 128, 4),
])  # fmt: skip
def test_a_bounded_number_of_batch_sizes_stands_for_a_space(
    batch: dict[str, Any], smallest: int, largest: int, count: int
) -> None:
    spec = make_spec(space=batch | {"optimizer.lr": {"log": [1e-3, 1.0]}})
    sizes = list_batches(spec, "resnet8")
    assert (sizes[0], sizes[-1]) == (smallest, largest)
    assert count / 2 < len(sizes) <= count
    steps = np.diff(np.log(sizes))
    assert steps.max() < 3 * np.log(largest / smallest) / len(steps)  # none of the range is left out
    points = [spec.config({key: parameter.at(0.0) for key, parameter in spec.space.items()})]
    values = [flatten_config(config) for config in points]
    named = Encoding(spec).name_batches(values)
    assert [size for _, size in named] == [config.global_batch_size for config in points]


@pytest.mark.parametrize(("ranks", "given", "keys"), [
    ([1, 1], 64, {"batch.micro": 64}),
    ([2, 2], 64, {"batch.micro": 32}),
    ([2, 2], 33, {"batch.global": 33, "batch.micro": 17}),
    ([1, 4], 64, {"batch.global": 64, "batch.micro": 16}),
])  # fmt: skip
def test_a_given_batch_size_counts_all_ranks(ranks: list[int], given: int, keys: dict[str, int]) -> None:
    rows = [trial(0, 16, 0.9), trial(1, 32, 0.9)]
    rows = [row | {"config.distributed.world_size": count} for row, count in zip(rows, ranks, strict=True)]
    candidates = select_candidates(select_comparable(frames_of(make_spec(), rows)), Limits())  # type: ignore[arg-type]
    assert candidates is not None
    assert fix_batch(candidates, given) == keys
    spec = make_spec(space={"optimizer.lr": {"log": [1e-3, 1.0]}})
    config = spec.config({"optimizer.lr": 0.1} | keys | {"distributed.world_size": ranks[-1]})
    assert config.global_batch_size == given


def test_a_script_that_is_given_a_model_keeps_the_models_apart() -> None:
    script = {"command": "python train.py {model.name} {batch.micro} {optimizer.lr}", "metric": "val_accuracy"}
    models = {"model.name": {"choice": ["resnet8", "vit_micro"]}}
    space = {"batch.micro": {"choice": [16, 32]}, "optimizer.lr": {"choice": [0.1, 0.2]}} | models
    places = itertools.product((16, 32), (0.1, 0.2), ("resnet8", "vit_micro"))
    rows = [
        trial(number, batch, 0.9 + 0.01 * number) | {"config.optimizer.lr": rate, "config.model.name": name}
        for number, (batch, rate, name) in enumerate(places)
    ]
    records = select_comparable(frames_of(make_spec(space=space, script=script), rows))  # type: ignore[arg-type]
    assert len(records.frame) == 8
    candidates = select_candidates(records, Limits())
    assert candidates is not None
    assert set(list_models(candidates)) == {"resnet8", "vit_micro"}
    assert not len(candidates.untried.models)  # all of the grid was tried
