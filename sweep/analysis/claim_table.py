"""The claims: what is commonly said about batch sizes, each with its source, its measurement and its smallest study."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.claim_measures import (
    SMALL,
    compare_families,
    compare_muon,
    measure_critical_batch,
    measure_last_doubling,
    measure_memory_power,
    measure_near_largest,
    measure_noise_power,
    measure_rate_rule,
    measure_sharpness_power,
    measure_slope,
    measure_small_batches,
    measure_split_memory,
    measure_split_time,
    measure_tuned_power,
    measure_waiting,
    measure_warmup_gain,
    settle_noise_power,
    settle_rate_rule,
    settle_regimes,
    settle_sharpness,
    settle_slope,
    settle_small_batches,
    settle_split,
)
from sweep.analysis.claims import (
    EFFECTIVE,
    PAIRED_ACCURACY,
    PAIRED_MEMORY,
    PAIRED_TIME,
    TUNED_ACCURACY,
    Claim,
    Condition,
    Design,
    Measure,
    Repetition,
    Sides,
    both,
    compare_accuracies,
    compare_costs,
    compare_tuned,
    count_micro,
    extend_space,
    has,
    holds,
    is_above,
    is_large,
    is_small,
    is_split,
    lacks,
    read_done,
)
from sweep.analysis.comparable import ComparableTrials
from sweep.analysis.costs import ran_micro_batches
from sweep.analysis.rate_powers import DECAY_PER_STEP, MICRO_KEYS, MOMENT_RATE, WEIGHT_DECAY
from sweep.analysis.statistics import Mask, Region, read_numbers, read_text
from sweep.config.metrics import SHARPNESS
from sweep.config.tables import has_batch_statistics
from sweep.config.trial import Scalar, config_keys

_MICRO, _SPLIT, _GLOBAL, _RATE = "batch.micro", "batch.accumulation", "batch.global", "optimizer.lr"
_OPTIMIZER, _SCHEDULE = "optimizer.name", "schedule.name"
_DTYPE, _CHECKPOINTING = "precision.dtype", "precision.checkpointing"
_TIME, _MEMORY = "train_seconds", "peak_memory_bytes"
_AVERAGE_RULE = "rules.ema"
_WARMUP_KEYS = ("schedule.warmup", "schedule.warmup_unit")
_GROWTH_KEYS = ("batch.schedule", "batch.schedule_factor", "batch.schedule_milestones", "batch.schedule_lr")
_DECAY_KEYS = (_SCHEDULE, "schedule.milestones", "schedule.gamma", "schedule.final", "schedule.peak")
_OPTIMIZER_KEYS = (
    *(key for key in config_keys() if key.startswith("optimizer.") and "decay" not in key),
    "rules.lr", "rules.betas", "rules.reference_batch",
)  # fmt: skip
_SCHEDULE_KEYS = tuple(key for key in config_keys() if key.startswith("schedule."))

# --- which trainings are compared

_SGD, _ADAM, _LAYERWISE = ("sgd", "momentum", "nesterov"), ("adam", "adamw"), ("lars", "lamb")
_grows = lacks("batch.schedule", "", "constant")
_falls = lacks(_SCHEDULE, "constant")
_averages = is_above("regularization.ema_decay")


def _depends_on_micro(trials: pd.DataFrame) -> Mask:
    # whether a normalization takes its statistics from the micro batch
    models = zip(*(read_text(trials, f"config.model.{key}") for key in ("name", "norm")), strict=True)
    return np.array([has_batch_statistics(name, norm) is not False for name, norm in models], dtype=np.bool_)


def _is_independent(trials: pd.DataFrame) -> Mask:
    return ~_depends_on_micro(trials)


def _is_free_or_falling(trials: pd.DataFrame) -> Mask:
    # schedule-free at a constant rate, AdamW with a rate that falls
    is_free, is_falling = has(_OPTIMIZER, "schedule_free")(trials), _falls(trials)
    return is_free & ~is_falling | has(_OPTIMIZER, "adamw")(trials) & is_falling


def _has_another_norm(trials: pd.DataFrame) -> Mask:
    is_synchronized = both(has("model.norm", "sync"), is_above("distributed.world_size", 1))
    return has("model.norm", "group", "layer")(trials) | is_synchronized(trials)


def _normalizes_few(trials: pd.DataFrame) -> Mask:
    # fewer than 16 samples in a micro batch
    is_compared = _has_another_norm(trials) | has("model.norm", "batch")(trials)
    return is_compared & (ran_micro_batches(trials) < 16)


def _read_ended(records: ComparableTrials) -> pd.DataFrame:
    # what diverged reached nothing
    outcomes = read_text(records.trials, "outcome")
    reached = np.where(outcomes == "diverged", 0.0, read_numbers(records.trials, "val_accuracy"))
    return records.trials.assign(val_accuracy=reached)[np.isin(outcomes, ["complete", "diverged"])]


def _pair(tested: tuple[str, ...], side: Condition, among: Condition = holds) -> Measure:
    return partial(compare_accuracies, sides=Sides(side, among), tested=tested)


def _split(side: Condition, among: Condition, read: Callable[[ComparableTrials], pd.DataFrame] = read_done) -> Measure:
    return partial(compare_accuracies, sides=Sides(side, among, read), tested=MICRO_KEYS, same_batch=True)


def _tune(tested: tuple[str, ...], side: Condition, among: Condition = holds) -> Measure:
    return partial(compare_tuned, sides=Sides(side, among), tested=tested)


def _tune_optimizers(ours: tuple[str, ...], others: tuple[str, ...], among: Condition = holds) -> Measure:
    return _tune(_OPTIMIZER_KEYS, has(_OPTIMIZER, *ours), both(has(_OPTIMIZER, *ours, *others), among))


def _compare_precisions(metric: str) -> Measure:
    sides = Sides(has(_DTYPE, "bf16", "fp16"), among=has(_DTYPE, "fp32", "bf16", "fp16"))
    return partial(compare_costs, sides=sides, tested=_DTYPE, metric=metric)


def _compare_checkpointing(metric: str) -> Measure:
    return partial(compare_costs, sides=Sides(has(_CHECKPOINTING, True)), tested=_CHECKPOINTING, metric=metric)


_BOTH_PRECISIONS = extend_space(_DTYPE, 'choice = ["fp32", "bf16"]')
_WITH_CHECKPOINTING = extend_space(_CHECKPOINTING, "choice = [false, true]")

# --- the smallest studies

_SIZES, _RATES, _WIDE = (16, 32, 64, 128, 256), (0.01, 0.03, 0.1, 0.3), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_BATCHES = Repetition(key=_MICRO, low=16, high=512, is_whole=True)
_REPEATED_RATES = Repetition(key=_RATE, low=0.01, high=0.3)
# Of a slope over n batch sizes, evenly spaced over five doublings (standard deviation 5 / sqrt(12)), times sqrt(n).
_SLOPE_SPREAD = TUNED_ACCURACY * np.sqrt(6.0) / 5
# Of an exponent by one value at each of five batch sizes, where accuracies scatter by 0.007 and the best value lies
# inside the range: from made-up studies.
_POWER_SPREAD = 0.4
_VALUE_SPREAD = 0.25  # the same where the measured value scatters by a factor of e^0.5
_WITHOUT_STATISTICS: dict[str, Scalar] = {"model.name": "vit_micro", _OPTIMIZER: "adamw", _RATE: 0.005}


def _design_powers(optimizer: str, key: str, low: float, high: float, is_complement: bool = False) -> Design:
    repeated = Repetition(key=key, low=low, high=high, is_complement=is_complement)
    base: dict[str, Scalar] = {_OPTIMIZER: optimizer}
    return Design(base=base, space={_MICRO: _SIZES}, repeated=repeated, spread=_POWER_SPREAD, fewest=8)


def _design_slopes(space: dict[str, tuple[Scalar, ...]]) -> Design:
    return Design(space=space, repeated=_BATCHES, spread=np.sqrt(2) * _SLOPE_SPREAD, lost=2)


def _design_pairs(key: str, values: tuple[Scalar, ...], spread: float) -> Design:
    # a pair at each micro batch: seeds are of equal cost, so that they would be one pair
    return Design(space={key: values}, repeated=Repetition(key=_MICRO, low=32, high=256, is_whole=True), spread=spread)


def _design_split(spread: float) -> Design:
    # a pair at each effective batch size, for the same reason
    sizes = Repetition(key=_GLOBAL, low=128, high=512, is_whole=True)
    return Design(space={_MICRO: (32, 512)}, repeated=sizes, spread=spread)


# --- the claims

_GAINS, _MATCHES, _EQUALS = Region(0.005, np.inf), Region(-0.005, np.inf), Region(-0.005, 0.005)
_ABOVE_ZERO = Region(0.0, np.inf)
_ROOT, _LINEAR = Region(0.25, 0.75), Region(0.75, 1.25)  # powers
_MATTERS = 0.002  # of accuracy, per doubling

CLAIMS = (
    Claim(name="lr_rule_linear", region=_LINEAR, unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="With SGD the best learning rate grows linearly with the effective batch size: by its power 0.75 to "
        "1.25.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: linear with warm-up 23.74 +- 0.09 %, square root 26.22 "
        "%, unscaled 41.67 %; holds to 8k. Shallue et al. 2018: no rule holds across workloads.",
        measure=partial(measure_rate_rule, power=1.0), settle=partial(settle_rate_rule, power=1.0),
        design=_design_powers("momentum", _RATE, 1e-3, 3.0)),
    Claim(name="lr_rule_sqrt", region=_ROOT, unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="With Adam and its variants the best learning rate grows with the square root of the effective "
        "batch size: by its power 0.25 to 0.75.",
        published="Malladi et al. 2022, betas and epsilon scaled too; McCandlish et al. 2018 measured powers between "
        "0.5 and 1.",
        measure=partial(measure_rate_rule, power=0.5), settle=partial(settle_rate_rule, power=0.5),
        design=_design_powers("adamw", _RATE, 3e-5, 0.3)),
    Claim(name="warmup_needed", region=_GAINS, varies=("schedule.warmup",),
        statement="From 8 times the reference batch on, warm-up gains half a point of accuracy or more.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: no warm-up 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, "
        "gradual 23.74 +- 0.09 %.",
        measure=_pair(_WARMUP_KEYS, is_above("schedule.warmup", 0), among=is_large(8)),
        settle=extend_space("schedule.warmup", "choice = [0.0, 0.1]"),
        design=Design(
            base={_MICRO: 256, "rules.reference_batch": 32, _RATE: 0.05, "rules.lr": "linear"},
            space={"schedule.warmup": (0.0, 0.1)},
        )),
    Claim(name="warmup_tolerates_rates", region=_ABOVE_ZERO, unit="fraction/doubling", matters=0.003,
        statement="Warm-up permits high learning rates: what it gains grows with the rate.",
        published="Kalra & Barkeshli 2024 (arXiv:2406.09405): the main benefit of warm-up is that larger learning "
        "rates are tolerated.",
        varies=("schedule.warmup", _RATE), measure=partial(measure_warmup_gain, tested=_WARMUP_KEYS),
        design=Design(  # five rates two doublings apart: their squared distances from the middle add up to 40
            space={"schedule.warmup": (0.0, 0.1), _RATE: (0.01, 0.04, 0.16, 0.64, 2.56)},
            spread=PAIRED_ACCURACY / np.sqrt(40.0),
        )),
    Claim(name="weight_decay_sqrt", region=_ROOT, unit="exponent", matters=0.25,
        statement="The best weight decay grows with the square root of the effective batch size: by its power 0.25 to "
        "0.75, at equal learning rate.",
        published="A rule of thumb; no published table.",
        varies=(EFFECTIVE, "optimizer.weight_decay"), measure=partial(measure_tuned_power, tuned=WEIGHT_DECAY),
        design=_design_powers("adamw", "optimizer.weight_decay", 1e-3, 3.0)),
    Claim(name="weight_decay_timescale", region=_LINEAR, unit="exponent", matters=0.25,
        statement="With AdamW the timescale of weight decay in epochs does not depend on the batch: the best product "
        "of learning rate and weight decay grows with the batch by its power 0.75 to 1.25.",
        published="Wang & Aitchison 2024 (arXiv:2405.13698): the best time scale of AdamW's average is stable in "
        "epochs. Bergsma et al. 2025 (arXiv:2505.13738): the best weight decay grows linearly with the batch.",
        varies=(EFFECTIVE, "optimizer.weight_decay"),
        measure=partial(measure_tuned_power, tuned=DECAY_PER_STEP, optimizers=("adamw",)),
        design=_design_powers("adamw", "optimizer.weight_decay", 1e-3, 3.0)),
    Claim(name="beta2_half_life", region=_LINEAR, unit="exponent", matters=0.25, varies=(EFFECTIVE, "optimizer.beta2"),
        statement="Adam's second moment has its best half-life at one number of samples: 1 - beta2 grows with the "
        "batch by its power 0.75 to 1.25.",
        published="Marek et al. 2025 (arXiv:2507.07101): hold the half-life of the second moment fixed in tokens "
        "instead of beta2.",
        measure=partial(measure_tuned_power, tuned=MOMENT_RATE, optimizers=("adam", "adamw", "lamb")),
        design=_design_powers("adamw", "optimizer.beta2", 1e-4, 0.5, is_complement=True)),
    Claim(name="large_batch_equal_epochs", region=Region(-np.inf, -0.001), unit="fraction/doubling", matters=_MATTERS,
        statement="At equal epochs a larger batch generalizes worse: 0.1 points or more are lost with each doubling, "
        "the learning rate chosen for each batch.",
        published="Keskar et al. 2016, CIFAR-10: 80.04 +- 0.12 % at 256, 77.26 +- 0.42 % at a tenth of the data. "
        "Goyal et al. 2017, ResNet-50: 76.40 % at 256, 76.26 % at 8k, 72.45 % at 32k, 66.04 % at 64k. Shallue et al. "
        "2018: no loss when tuned.",
        varies=(EFFECTIVE,), measure=partial(measure_slope, budget="epochs"),
        settle=partial(settle_slope, budget="epochs"),
        design=Design(space={_RATE: _RATES}, repeated=_BATCHES, spread=_SLOPE_SPREAD, lost=2)),
    Claim(name="large_batch_equal_steps", region=Region(-np.inf, -0.001), unit="fraction/doubling", matters=_MATTERS,
        statement="At equal steps a larger batch generalizes worse: 0.1 points or more are lost with each doubling, "
        "the learning rate chosen for each batch.",
        published="Hoffer et al. 2017: the gap closes when the number of steps is kept. Shallue et al. 2018: no "
        "evidence that larger batches generalize worse.",
        varies=(EFFECTIVE,), measure=partial(measure_slope, budget="steps"),
        settle=partial(settle_slope, budget="steps"),
        design=Design(
            base={"budget.steps": 200}, space={_RATE: _RATES}, repeated=_BATCHES, spread=_SLOPE_SPREAD, lost=2
        )),
    Claim(name="small_batches_best", region=_ABOVE_ZERO, varies=(EFFECTIVE,), measure=measure_small_batches,
        statement="Small batches (up to 32 samples) reach the best accuracy.",
        published="Masters & Luschi 2018: best results with batches from 2 to 32; plain SGD without momentum at fixed "
        "epochs.",
        settle=settle_small_batches,
        design=Design(space={_MICRO: (16, 32, 64, 128), _RATE: _RATES}, spread=TUNED_ACCURACY)),
    Claim(name="vit_less_sensitive", region=_ABOVE_ZERO, unit="fraction/doubling", matters=_MATTERS,
        statement="A ViT loses less accuracy with each doubling of the batch than a ResNet.",
        published="Often quoted: ViT 82.0, 81.8, 81.0 % at 512, 1,024, 4,096 against ResNet-50 76.0, 74.8, 72.0 % at "
        "256, 1,024, 4,096; Goyal et al. 2017 contradict the latter.",
        varies=("model.name", EFFECTIVE), measure=compare_families,
        settle=extend_space("model.name", 'choice = ["resnet8", "vit_micro"]'),
        design=_design_slopes({"model.name": ("vit_micro", "resnet8"), _RATE: _RATES})),
    Claim(name="muon_less_sensitive", region=_ABOVE_ZERO, unit="fraction/doubling", matters=_MATTERS,
        statement="Muon loses less accuracy with each doubling of the batch than AdamW.",
        published="Shah et al. 2025 (arXiv:2505.02222): Muon retains data efficiency at large batches better than "
        "AdamW, far beyond the critical batch.",
        varies=(_OPTIMIZER, EFFECTIVE), measure=compare_muon,
        design=_design_slopes({_OPTIMIZER: ("muon", "adamw"), _RATE: (0.001, 0.004, 0.016, 0.064)})),
    Claim(name="layerwise_needed", region=_GAINS, varies=(_OPTIMIZER, _RATE),
        statement="Large batches need LARS or LAMB: from 8 times the reference batch on they gain half a point of "
        "accuracy or more over SGD and Adam, all equally tuned.",
        published="You et al. 2017, 2020. Nado et al. 2021 (arXiv:2102.06356): tuned Nesterov momentum and Adam match "
        "or exceed them.",
        measure=_tune_optimizers(_LAYERWISE, (*_SGD, *_ADAM), among=is_large(8)),
        design=Design(
            base={_MICRO: 256, "rules.reference_batch": 32},
            space={_OPTIMIZER: ("lars", "nesterov"), _RATE: (*_WIDE, 3.0, 10.0)}, spread=TUNED_ACCURACY,
        )),
    Claim(name="sgd_small_batch", region=_MATCHES, varies=(_OPTIMIZER, _RATE),
        statement="At small batches (up to 32 samples) SGD is as good as Adam: within half a point of accuracy or "
        "better, both equally tuned.",
        published="Marek et al. 2025 (arXiv:2507.07101): the gap between optimizers shrinks with the batch; SGD "
        "without momentum is close to AdamW at small ones.",
        measure=_tune_optimizers(_SGD, _ADAM, among=is_small(SMALL)),
        design=Design(
            base={_MICRO: 32}, space={_OPTIMIZER: ("sgd", "adamw"), _RATE: (0.001, *_WIDE)},
            spread=TUNED_ACCURACY,
        )),
    Claim(name="muon_ahead", region=_GAINS, varies=(_OPTIMIZER, _RATE),
        statement="Muon gains half a point of accuracy or more over AdamW at an equal length of training, both "
        "equally tuned.",
        published="Jordan et al. 2024; Liu et al. 2025 (arXiv:2502.16982): about twice the efficiency. Wen et al. "
        "2025 (arXiv:2509.02046): far less against a well tuned AdamW, and less for larger models.",
        measure=_tune_optimizers(("muon",), ("adamw",)),
        design=Design(space={_OPTIMIZER: ("muon", "adamw"), _RATE: (0.001, *_WIDE[:5])}, spread=TUNED_ACCURACY)),
    Claim(name="schedule_free_matches", region=_MATCHES, varies=(_OPTIMIZER, _SCHEDULE, _RATE),
        statement="Schedule-Free AdamW needs no falling rate: it reaches the accuracy of AdamW with one within half a "
        "point, or more, both equally tuned.",
        published="Defazio et al. 2024 (arXiv:2405.15682): matches or exceeds tuned schedules without knowing the "
        "length of training.",
        measure=_tune((*_OPTIMIZER_KEYS, *_SCHEDULE_KEYS), has(_OPTIMIZER, "schedule_free"), among=_is_free_or_falling),
        design=Design(
            space={
                _OPTIMIZER: ("schedule_free", "adamw"), _SCHEDULE: ("constant", "cosine"),
                _RATE: (0.001, *_WIDE[:4]),
            },
            spread=TUNED_ACCURACY,
        )),
    Claim(name="fine_tune_small_batches", region=_GAINS, varies=(EFFECTIVE, _RATE), sets=("model.weights",),
        statement="Fine-tuning needs small batches: up to 64 samples gain half a point of accuracy or more over "
        "larger ones, both equally tuned.",
        published="A rule of thumb (16 to 64 samples, a rate 10 to 100 times smaller); no published table.",
        measure=_tune(MICRO_KEYS, is_small(64), among=lacks("model.weights", "")),
        design=Design(
            base={"model.weights": "pretrained.safetensors"},
            space={_MICRO: (32, 256), _RATE: (0.001, 0.003, 0.01, 0.03, 0.1)}, spread=TUNED_ACCURACY,
        )),
    Claim(name="small_batch_norm", region=_GAINS, varies=("model.norm",),
        statement="Below 16 samples in a micro batch, batch normalization has to be synchronized or replaced: another "
        "normalization gains half a point of accuracy or more there.",
        published="Wu & He 2018 (arXiv:1803.08494), ResNet-50 with 2 images each: group normalization 24.1 %, batch "
        "normalization 34.7 % error. Goyal et al. 2017 keep 32 samples.",
        measure=_pair(("model.norm", "model.ghost_batch"), _has_another_norm, among=_normalizes_few),
        design=Design(base={_MICRO: 8, _SPLIT: 8}, space={"model.norm": ("batch", "group")})),
    Claim(name="accumulation_time", region=Region(1.5, 2.0), unit="ratio", matters=1.1, varies=(_SPLIT,),
        statement="Accumulation takes 1.5 to 2 times the time of the same effective batch size without it.",
        published="No published figure; on one device it is the same arithmetic.",
        metrics=(_TIME, "images_per_second"), measure=measure_split_time, settle=settle_split,
        design=_design_split(PAIRED_TIME)),
    Claim(name="accumulation_memory", region=Region(0.9, np.inf), unit="fraction", matters=0.05, varies=(_SPLIT,),
        statement="Accumulation over k micro batches saves 1 - 1 / k of the memory (85 % at k = 8), or at least 90 % "
        "of that.",
        published="Only activations shrink; parameters, gradients and optimizer state do not.",
        metrics=(_MEMORY,), measure=measure_split_memory, settle=settle_split,
        design=_design_split(PAIRED_MEMORY)),
    Claim(name="accumulation_batch_norm", region=_EQUALS, varies=(_SPLIT,),
        statement="With batch normalization, accumulation still gives the accuracy of the large batch, within half a "
        "point.",
        published="Exact without batch normalization; with it the statistics are those of the micro batch (ghost "
        "batch normalization, Hoffer et al. 2017).",
        measure=_split(is_split(), among=both(has("model.norm", "batch"), _depends_on_micro)),
        settle=settle_split,
        design=Design(base={_GLOBAL: 256}, space={_MICRO: (32, 256)})),
    Claim(name="accumulation_diverges", region=Region(-np.inf, -0.005), varies=(_SPLIT,),
        statement="Accumulation over more than 16 micro batches diverges or loses half a point of accuracy or more "
        "against fewer at the same effective batch size, without batch normalization; what diverged counts as 0.",
        published="Attributed to stale gradients, for which there is no mechanism: the gradients of one step are "
        "taken at the same weights.",
        measure=_split(is_split(more_than=16), among=_is_independent, read=_read_ended),
        design=Design(base={**_WITHOUT_STATISTICS, _GLOBAL: 512}, space={_MICRO: (16, 128)})),
    Claim(name="accumulation_wasteful", region=_MATCHES, varies=(_SPLIT, _RATE),
        statement="Accumulation is wasteful: steps of one micro batch reach the same accuracy within half a point, or "
        "more, at an equal length of training and with the learning rate chosen for each.",
        published="Marek et al. 2025 (arXiv:2507.07101): small batches perform as well or better per FLOP; "
        "accumulation is recommended only for several devices.",
        measure=_tune((_SPLIT, _GLOBAL), lambda trials: count_micro(trials) == 1),
        design=Design(space={_SPLIT: (1, 4), _RATE: _RATES}, spread=TUNED_ACCURACY)),
    Claim(name="ema_per_step", region=_EQUALS, varies=(_SPLIT,), sets=("regularization.ema_decay",),
        statement="A moving average of the weights that follows optimizer steps gives the same accuracy with "
        "accumulation as without, within half a point, without batch normalization.",
        published="By definition; an average that follows backward passes decays k times as fast with k micro "
        "batches.",
        measure=_split(is_split(), among=both(_averages, _is_independent)),
        design=Design(
            base={**_WITHOUT_STATISTICS, _GLOBAL: 256, "regularization.ema_decay": 0.95}, space={_MICRO: (32, 256)}
        )),
    Claim(name="batch_instead_of_decay", region=_EQUALS, varies=("batch.schedule", _SCHEDULE),
        statement="A growing batch replaces a falling learning rate: both reach the same accuracy within half a point "
        "at an equal length of training.",
        published="Smith et al. 2017 (arXiv:1711.00489), Wide ResNet-16-4 on CIFAR-10: the same learning curves "
        "against epochs in far fewer updates.",
        measure=_pair((*_GROWTH_KEYS, *_DECAY_KEYS), _grows, among=lambda trials: _falls(trials) != _grows(trials)),
        design=Design(
            base={_MICRO: 32, "batch.schedule_milestones": "0.5, 0.75", "schedule.gamma": 0.35},
            space={"batch.schedule": ("constant", "stepwise"), _SCHEDULE: ("constant", "step")},
        )),
    Claim(name="batch_warmup", region=_MATCHES, varies=("batch.schedule",),
        statement="A batch that grows during training saves steps without a loss: its accuracy is that of the batch "
        "it began with within half a point, or more.",
        published="Merrill et al. 2025 (arXiv:2505.23971): the critical batch grows during training; slightly better "
        "loss with 43 % fewer steps.",
        measure=_pair(_GROWTH_KEYS, _grows),
        design=Design(
            base={_MICRO: 32, "batch.schedule_factor": 4.0}, space={"batch.schedule": ("constant", "exponential")}
        )),
    Claim(name="linear_decay_best", region=_ABOVE_ZERO, varies=(_SCHEDULE,),
        statement="A learning rate that falls linearly to zero reaches a higher accuracy than cosine.",
        published="Defazio et al. 2023 (arXiv:2310.07831): linear decay is optimal for the last iterate and matches "
        "or outperforms cosine. Bergsma et al. 2025 (arXiv:2502.15938): best when it falls to zero.",
        measure=_pair((_SCHEDULE,), has(_SCHEDULE, "linear"), among=has(_SCHEDULE, "linear", "cosine")),
        design=Design(space={_SCHEDULE: ("linear", "cosine")})),
    Claim(name="ema_follows_batch", region=_GAINS, varies=(_AVERAGE_RULE,),
        statement="From 4 times the reference batch on, a moving average of the weights whose decay follows the batch "
        "gains half a point of accuracy or more over one that does not.",
        published="Busbridge et al. 2023 (arXiv:2307.13813): the decay is to be raised to the power of the growth of "
        "the batch; otherwise training changes with the batch.",
        sets=("regularization.ema_decay",),
        measure=_pair((_AVERAGE_RULE,), has(_AVERAGE_RULE, "power"), among=both(_averages, is_large(4))),
        design=Design(  # the decay rises over a training's steps: in short ones it is the same without the rule
            base={
                _MICRO: 64, "rules.reference_batch": 16, "regularization.ema_decay": 0.98, "budget.epochs": 20,
            },
            space={_AVERAGE_RULE: ("none", "power")},
        )),
    Claim(name="memory_linear", region=Region(0.9, 1.1), unit="exponent", matters=0.1, varies=(_MICRO,),
        statement="Memory grows linearly with the micro batch: by its power 0.9 to 1.1, apart from a constant.",
        published="Activations grow with the micro batch; parameters, gradients and optimizer state do not; allocator "
        "rounding and workspaces bend the line.",
        metrics=(_MEMORY,), measure=measure_memory_power, settle=extend_space("batch.micro", "log2 = [4, 10]"),
        design=Design(
            space={}, repeated=Repetition(key=_MICRO, low=16, high=512, is_whole=True), spread=0.03, lost=3, fewest=6
        )),
    Claim(name="larger_is_faster", region=Region(1.05, np.inf), unit="ratio", matters=1.05, varies=(_MICRO,),
        statement="A larger micro batch is faster: the last doubling that was tried still gives 5 % throughput or "
        "more.",
        published="Throughput saturates, and epochs to a target grow: MLPerf ResNet-50 reference points 35.0 at batch "
        "1,632, 42.0 at 8,192, 56.0 at 32,768, 84.5 at 65,536.",
        metrics=("images_per_second",), measure=measure_last_doubling,
        settle=extend_space("batch.micro", "log2 = [4, 12]"),
        design=Design(space={_MICRO: (128, 256)}, spread=PAIRED_TIME)),
    Claim(name="mixed_precision_time", region=Region(0.5, 1 / 1.3), unit="ratio", matters=1.1,
        statement="Mixed precision trains 1.3 to 2 times as fast: its time is 0.5 to 0.77 of full precision's.",
        published="No table; 1.3 to 2 times is the usual claim.",
        varies=(_DTYPE,), metrics=(_TIME,), measure=_compare_precisions(_TIME),
        settle=_BOTH_PRECISIONS,
        design=_design_pairs(_DTYPE, ("fp32", "bf16"), PAIRED_TIME)),
    Claim(name="mixed_precision_memory", region=Region(0.4, 0.6), unit="ratio", matters=1.1, varies=(_DTYPE,),
        statement="Mixed precision halves memory: 0.4 to 0.6 of full precision's.",
        published="Weights, gradients and optimizer state stay in full precision under autocast; only activations "
        "shrink.",
        metrics=(_MEMORY,), measure=_compare_precisions(_MEMORY), settle=_BOTH_PRECISIONS,
        design=_design_pairs(_DTYPE, ("fp32", "bf16"), PAIRED_MEMORY)),
    Claim(name="checkpointing_time", region=Region(1.2, 1.4), unit="ratio", matters=1.1,
        statement="Activation checkpointing costs about 30 % time: 1.2 to 1.4 times.",
        published="Chen et al. 2016: one more forward pass, about 30 %.",
        varies=(_CHECKPOINTING,), metrics=(_TIME,), measure=_compare_checkpointing(_TIME),
        settle=_WITH_CHECKPOINTING,
        design=_design_pairs(_CHECKPOINTING, (False, True), PAIRED_TIME)),
    Claim(name="checkpointing_memory", region=Region(0.0, 1.0), unit="ratio", matters=1.05,
        statement="Activation checkpointing saves memory.",
        published="Chen et al. 2016: activations of n layers in the space of sqrt(n).",
        varies=(_CHECKPOINTING,), metrics=(_MEMORY,),
        measure=_compare_checkpointing(_MEMORY), settle=_WITH_CHECKPOINTING,
        design=_design_pairs(_CHECKPOINTING, (False, True), PAIRED_MEMORY)),
    Claim(name="memory_80_percent", region=Region(1.05, np.inf), unit="ratio", matters=1.05, varies=(_MICRO,),
        statement="A micro batch of 80 % of the largest that fits is the one to use: it gives 5 % throughput or more "
        "over half of the largest.",
        published="A margin against fragmentation that is often given as a rule; no published table.",
        metrics=("images_per_second",), measure=measure_near_largest,
        design=Design(space={_MICRO: (256, 410, 512)}, spread=PAIRED_TIME)),
    Claim(name="loader_bottleneck", region=Region(0.5, np.inf), unit="fraction", matters=0.1, sets=("data.placement",),
        statement="The data loader is the real bottleneck: half of the training time or more is spent waiting for "
        "data that is not kept on the device.",
        published="airbench, hlb-CIFAR10 and ffcv replace the input path by images on the device or compiled loaders.",
        metrics=("data_wait_seconds",), measure=measure_waiting,
        design=Design(base={"data.placement": "host"}, space={}, spread=0.05)),
    Claim(name="three_regimes", region=Region(8.0, 1024.0), unit="samples", matters=2.0, varies=(EFFECTIVE, _RATE),
        statement="Steps to a target fall in proportion to the batch, then less, then no more: the critical batch "
        "between the regimes is among those that were tried.",
        published="McCandlish et al. 2018, critical batch: MNIST 200, SVHN 500, CIFAR-10 900, ImageNet 15,000 "
        "(averages over a run). Shallue et al. 2018 see the three regimes in every workload.",
        sets=("budget.target_accuracy",), measure=measure_critical_batch, settle=settle_regimes,
        design=Design(
            base={"budget.target_accuracy": 0.9, "budget.max_epochs": 30, _SCHEDULE: "constant"},
            space={_RATE: (0.003, 0.01, 0.03, 0.1, 0.3)}, spread=1.0, lost=2, fewest=8,
            repeated=Repetition(key=_MICRO, low=8, high=1024, is_whole=True),
        )),
    Claim(name="noise_scale_temperature", region=Region(0.5, 1.5), unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="The gradient noise scale B_simple, averaged over the training, grows with batch / learning rate: "
        "with the batch by its power 0.5 to 1.5, at equal learning rate and training loss.",
        published="McCandlish et al. 2018: inversely proportional to the temperature, learning rate / batch; ten "
        "times and more over one run.",
        metrics=("num_noise_steps",), measure=measure_noise_power, settle=settle_noise_power,
        design=Design(  # two micro batches in a step, whose gradients are measured often enough in a short training
            base={"diagnostics.noise_scale": True, _SPLIT: 2, "budget.epochs": 10},
            space={_MICRO: (8, 16, 32, 64, 128)}, repeated=_REPEATED_RATES, fewest=5, spread=_VALUE_SPREAD,
        )),
    Claim(name="large_batches_sharp", region=_ABOVE_ZERO, unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="Large batches end in sharper minima: sharpness grows with the effective batch size, at equal "
        "learning rate and training loss.",
        published="Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data. Dinh et "
        "al. 2017: a network can be made arbitrarily sharp without a change of what it computes.",
        metrics=SHARPNESS, measure=measure_sharpness_power, settle=settle_sharpness,
        design=Design(
            base={"diagnostics.sharpness": True}, space={_MICRO: _SIZES}, repeated=_REPEATED_RATES, fewest=5,
            spread=_VALUE_SPREAD,
        )),
)  # fmt: skip
