"""The claims: what is commonly said about batch sizes, each with its source, its measurement and its smallest study."""

from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.claim_measures import (
    Condition,
    compare_accuracies,
    compare_costs,
    compare_slopes,
    compare_split,
    compare_tuned,
    count_micro,
    holds,
    is_small,
    measure_critical_batch,
    measure_critical_growth,
    measure_last_doubling,
    measure_memory_power,
    measure_noise_power,
    measure_rate_rule,
    measure_sharpness_power,
    measure_slope,
    measure_small_batches,
)
from sweep.analysis.claims import EFFECTIVE, PAIRED_MEMORY, PAIRED_TIME, TUNED_ACCURACY, Claim, Design, Measure
from sweep.analysis.costs import ran_micro_batches
from sweep.analysis.rate_powers import MICRO_KEYS, measure_decay_power
from sweep.analysis.statistics import Mask, Region, Values, read_numbers, read_text
from sweep.config.metrics import SHARPNESS
from sweep.config.tables import FEW_OF_NORM, has_batch_statistics
from sweep.config.trial import Scalar, config_keys

_MICRO, _SPLIT, _GLOBAL, _RATE = "batch.micro", "batch.accumulation", "batch.global", "optimizer.lr"
_OPTIMIZER, _SCHEDULE = "optimizer.name", "schedule.name"
_DTYPE, _CHECKPOINTING = "precision.dtype", "precision.checkpointing"
_TIME, _MEMORY = "train_seconds", "peak_memory_bytes"
_AVERAGE_RULE, _BETA_RULE, _DECAY = "rules.ema", "rules.betas", "optimizer.weight_decay"
_HALF_LIFE = "script.beta2_halflife"  # in tokens, 0 where a script keeps beta2
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


def _number(trials: pd.DataFrame, key: str) -> Values:
    return read_numbers(trials, f"config.{key}")


def _of(key: str, *values: Scalar) -> Condition:
    # the key has one of the values; "" is no value
    return lambda trials: np.isin(read_text(trials, f"config.{key}"), np.array(values))


def _growth(trials: pd.DataFrame) -> Values:
    # the effective batch size over the reference batch
    return read_numbers(trials, EFFECTIVE) / _number(trials, "rules.reference_batch")


def _is_large(trials: pd.DataFrame) -> Mask:
    return _growth(trials) >= 8


def _grows(trials: pd.DataFrame) -> Mask:
    return ~_of("batch.schedule", "", "constant")(trials)


def _falls(trials: pd.DataFrame) -> Mask:
    return ~_of(_SCHEDULE, "constant")(trials)


def _is_single(trials: pd.DataFrame) -> Mask:
    return np.asarray(read_numbers(trials, EFFECTIVE) == 1)


def _keeps_half_life(trials: pd.DataFrame) -> Mask:
    return _of(_BETA_RULE, "half_life")(trials) | (_number(trials, _HALF_LIFE) > 0)


def _averages_large(trials: pd.DataFrame) -> Mask:
    return np.isfinite(_number(trials, "regularization.ema_decay")) & (_growth(trials) >= 4)


def _depends_on_micro(trials: pd.DataFrame) -> Mask:
    # whether a normalization takes its statistics from the micro batch
    models = zip(*(read_text(trials, f"config.model.{key}") for key in ("name", "norm")), strict=True)
    return np.array([has_batch_statistics(name, norm) is not False for name, norm in models], dtype=np.bool_)


def _is_free_or_falling(trials: pd.DataFrame) -> Mask:
    # schedule-free at a constant rate, AdamW with a rate that falls
    is_free, is_falling = _of(_OPTIMIZER, "schedule_free")(trials), _falls(trials)
    return is_free & ~is_falling | _of(_OPTIMIZER, "adamw")(trials) & is_falling


def _has_another_norm(trials: pd.DataFrame) -> Mask:
    is_synchronized = _of("model.norm", "sync")(trials) & (_number(trials, "distributed.world_size") > 1)
    return _of("model.norm", "group", "layer")(trials) | is_synchronized


def _normalizes_few(trials: pd.DataFrame) -> Mask:
    is_compared = _has_another_norm(trials) | _of("model.norm", "batch")(trials)
    return is_compared & (ran_micro_batches(trials) < FEW_OF_NORM)


def _pair(tested: tuple[str, ...], side: Condition, among: Condition = holds) -> Measure:
    return partial(compare_accuracies, side=side, among=among, tested=tested)


def _split(side: Condition, among: Condition, with_diverged: bool = False) -> Measure:
    return partial(
        compare_accuracies, side=side, among=among, tested=MICRO_KEYS, same_batch=True, with_diverged=with_diverged
    )


def _tune(tested: tuple[str, ...], side: Condition, among: Condition = holds) -> Measure:
    return partial(compare_tuned, side=side, among=among, tested=tested)


def _tune_optimizers(ours: tuple[str, ...], others: tuple[str, ...], among: Condition = holds) -> Measure:
    both = _of(_OPTIMIZER, *ours, *others)
    return _tune(_OPTIMIZER_KEYS, _of(_OPTIMIZER, *ours), lambda trials: both(trials) & among(trials))


def _compare_precisions(metric: str) -> Measure:
    side, among = _of(_DTYPE, "bf16", "fp16"), _of(_DTYPE, "fp32", "bf16", "fp16")
    return partial(compare_costs, side=side, among=among, tested=_DTYPE, metric=metric)


def _compare_checkpointing(metric: str) -> Measure:
    return partial(compare_costs, side=_of(_CHECKPOINTING, True), among=holds, tested=_CHECKPOINTING, metric=metric)


# --- the smallest studies

_SIZES, _RATES, _WIDE = (16, 32, 64, 128, 256), (0.01, 0.03, 0.1, 0.3), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# Of a slope over n batch sizes, evenly spaced over five doublings (standard deviation 5 / sqrt(12)), times sqrt(n).
_SLOPE_SPREAD = TUNED_ACCURACY * np.sqrt(6.0) / 5
# Of an exponent by one value at each of five batch sizes, where accuracies scatter by 0.007 and the best value lies
# inside the range: from made-up studies.
_POWER_SPREAD = 0.4
_VALUE_SPREAD = 0.25  # the same where the measured value scatters by a factor of e^0.5
_WITHOUT_STATISTICS: dict[str, Scalar] = {"model.name": "vit_micro", _OPTIMIZER: "adamw", _RATE: 0.005}


def _design_rates(optimizer: str, low: float, high: float) -> Design:
    return Design(
        base={_OPTIMIZER: optimizer}, space={_MICRO: _SIZES}, repeated=_RATE, low=low, high=high, spread=_POWER_SPREAD,
        fewest=8,
    )  # fmt: skip


def _design_slopes(
    space: dict[str, tuple[Scalar, ...]], base: dict[str, Scalar] | None = None, num_sides: int = 1
) -> Design:
    spread = np.sqrt(num_sides) * _SLOPE_SPREAD
    return Design(base=base or {}, space=space, repeated=_MICRO, low=16, high=512, spread=spread, lost=2)


def _design_pairs(key: str, values: tuple[Scalar, ...], spread: float) -> Design:
    # a pair at each micro batch: seeds are of equal cost, so that they would be one pair
    return Design(space={key: values}, repeated=_MICRO, low=32, high=256, spread=spread)


def _design_split(spread: float) -> Design:
    # a pair at each effective batch size, for the same reason
    return Design(space={_MICRO: (32, 512)}, repeated=_GLOBAL, low=128, high=512, spread=spread)


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
        measure=partial(measure_rate_rule, power=1.0),
        design=_design_rates("momentum", 1e-3, 3.0)),
    Claim(name="lr_rule_sqrt", region=_ROOT, unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="With Adam and its variants the best learning rate grows with the square root of the effective "
        "batch size: by its power 0.25 to 0.75.",
        published="Malladi et al. 2022, betas and epsilon scaled too; McCandlish et al. 2018 measured powers between "
        "0.5 and 1.",
        measure=partial(measure_rate_rule, power=0.5),
        design=_design_rates("adamw", 3e-5, 0.3)),
    Claim(name="warmup_needed", region=_GAINS, varies=("schedule.warmup",),
        statement="From 8 times the reference batch on, warm-up gains half a point of accuracy or more.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: no warm-up 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, "
        "gradual 23.74 +- 0.09 %.",
        measure=_pair(_WARMUP_KEYS, lambda trials: _number(trials, "schedule.warmup") > 0, _is_large),
        design=Design(
            base={_MICRO: 256, "rules.reference_batch": 32, _RATE: 0.05, "rules.lr": "linear"},
            space={"schedule.warmup": (0.0, 0.1)},
        )),
    Claim(name="large_batch_equal_epochs", region=Region(-np.inf, -0.001), unit="fraction/doubling", matters=_MATTERS,
        statement="At equal epochs a larger batch generalizes worse: 0.1 points or more are lost with each doubling, "
        "the learning rate chosen for each batch.",
        published="Keskar et al. 2016, CIFAR-10: 80.04 +- 0.12 % at 256, 77.26 +- 0.42 % at a tenth of the data. "
        "Goyal et al. 2017, ResNet-50: 76.40 % at 256, 76.26 % at 8k, 72.45 % at 32k, 66.04 % at 64k. Shallue et al. "
        "2018: no loss when tuned.",
        varies=(EFFECTIVE,), measure=partial(measure_slope, budget="epochs"),
        design=_design_slopes({_RATE: _RATES})),
    Claim(name="large_batch_equal_steps", region=Region(-np.inf, -0.001), unit="fraction/doubling", matters=_MATTERS,
        statement="At equal steps a larger batch generalizes worse: 0.1 points or more are lost with each doubling, "
        "the learning rate chosen for each batch.",
        published="Hoffer et al. 2017: the gap closes when the number of steps is kept. Shallue et al. 2018: no "
        "evidence that larger batches generalize worse.",
        varies=(EFFECTIVE,), measure=partial(measure_slope, budget="steps"),
        design=_design_slopes({_RATE: _RATES}, {"budget.steps": 200})),
    Claim(name="small_batches_best", region=_ABOVE_ZERO, varies=(EFFECTIVE,), measure=measure_small_batches,
        statement="Small batches (up to 32 samples) reach the best accuracy.",
        published="Masters & Luschi 2018: best results with batches from 2 to 32; plain SGD without momentum at fixed "
        "epochs.",
        design=Design(space={_MICRO: (16, 32, 64, 128), _RATE: _RATES}, spread=TUNED_ACCURACY)),
    Claim(name="vit_less_sensitive", region=_ABOVE_ZERO, unit="fraction/doubling", matters=_MATTERS,
        statement="A ViT loses less accuracy with each doubling of the batch than a ResNet.",
        published="Often quoted: ViT 82.0, 81.8, 81.0 % at 512, 1,024, 4,096 against ResNet-50 76.0, 74.8, 72.0 % at "
        "256, 1,024, 4,096; Goyal et al. 2017 contradict the latter.",
        varies=("model.name", EFFECTIVE), measure=partial(compare_slopes, key="model.name", sides=("vit", "resnet")),
        design=_design_slopes({"model.name": ("vit_micro", "resnet8"), _RATE: _RATES}, num_sides=2)),
    Claim(name="muon_less_sensitive", region=_ABOVE_ZERO, unit="fraction/doubling", matters=_MATTERS,
        statement="Muon loses less accuracy with each doubling of the batch than AdamW.",
        published="Shah et al. 2025 (arXiv:2505.02222): Muon retains data efficiency at large batches better than "
        "AdamW, far beyond the critical batch.",
        varies=(_OPTIMIZER, EFFECTIVE), measure=partial(compare_slopes, key=_OPTIMIZER, sides=("muon", "adamw")),
        design=_design_slopes({_OPTIMIZER: ("muon", "adamw"), _RATE: (0.001, 0.004, 0.016, 0.064)}, num_sides=2)),
    Claim(name="layerwise_needed", region=_GAINS, varies=(_OPTIMIZER, _RATE),
        statement="Large batches need LARS or LAMB: from 8 times the reference batch on they gain half a point of "
        "accuracy or more over SGD and Adam, all equally tuned.",
        published="You et al. 2017, 2020. Nado et al. 2021 (arXiv:2102.06356): tuned Nesterov momentum and Adam match "
        "or exceed them.",
        measure=_tune_optimizers(_LAYERWISE, (*_SGD, *_ADAM), _is_large),
        design=Design(
            base={_MICRO: 256, "rules.reference_batch": 32},
            space={_OPTIMIZER: ("lars", "nesterov"), _RATE: (*_WIDE, 3.0, 10.0)}, spread=TUNED_ACCURACY,
        )),
    Claim(name="sgd_small_batch", region=_MATCHES, varies=(_OPTIMIZER, _RATE),
        statement="At small batches (up to 32 samples) SGD is as good as Adam: within half a point of accuracy or "
        "better, both equally tuned.",
        published="Marek et al. 2025 (arXiv:2507.07101): the gap between optimizers shrinks with the batch; SGD "
        "without momentum is close to AdamW at small ones.",
        measure=_tune_optimizers(_SGD, _ADAM, is_small),
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
        measure=_tune((*_OPTIMIZER_KEYS, *_SCHEDULE_KEYS), _of(_OPTIMIZER, "schedule_free"), _is_free_or_falling),
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
        measure=_tune(
            MICRO_KEYS, lambda trials: read_numbers(trials, EFFECTIVE) <= 64,
            lambda trials: ~_of("model.weights", "")(trials),
        ),
        design=Design(
            base={"model.weights": "pretrained.safetensors"},
            space={_MICRO: (32, 256), _RATE: (0.001, 0.003, 0.01, 0.03, 0.1)}, spread=TUNED_ACCURACY,
        )),
    Claim(name="small_batch_norm", region=_GAINS, varies=("model.norm",),
        statement="Below 16 samples in a micro batch, batch normalization has to be synchronized or replaced: another "
        "normalization gains half a point of accuracy or more there.",
        published="Wu & He 2018 (arXiv:1803.08494), ResNet-50 with 2 images each: group normalization 24.1 %, batch "
        "normalization 34.7 % error. Goyal et al. 2017 keep 32 samples.",
        measure=_pair(("model.norm", "model.ghost_batch"), _has_another_norm, _normalizes_few),
        design=Design(base={_MICRO: 8, _SPLIT: 8}, space={"model.norm": ("batch", "group")})),
    Claim(name="accumulation_time", region=Region(1.5, 2.0), unit="ratio", matters=1.1, varies=(_SPLIT,),
        statement="Accumulation takes 1.5 to 2 times the time of the same effective batch size without it.",
        published="No published figure; on one device it is the same arithmetic.",
        metrics=(_TIME, "images_per_second"), measure=partial(compare_split, metric=_TIME),
        design=_design_split(PAIRED_TIME)),
    Claim(name="accumulation_memory", region=Region(0.9, np.inf), unit="fraction", matters=0.05, varies=(_SPLIT,),
        statement="Accumulation over k micro batches saves 1 - 1 / k of the memory (85 % at k = 8), or at least 90 % "
        "of that.",
        published="Only activations shrink; parameters, gradients and optimizer state do not.",
        metrics=(_MEMORY,), measure=partial(compare_split, metric=_MEMORY),
        design=_design_split(PAIRED_MEMORY)),
    Claim(name="accumulation_batch_norm", region=_EQUALS, varies=(_SPLIT,),
        statement="With batch normalization, accumulation still gives the accuracy of the large batch, within half a "
        "point.",
        published="Exact without batch normalization; with it each micro batch has its own statistics (ghost "
        "batch normalization, Hoffer et al. 2017).",
        measure=_split(
            lambda trials: count_micro(trials) > 1,
            lambda trials: _of("model.norm", "batch")(trials) & _depends_on_micro(trials),
        ),
        design=Design(base={_GLOBAL: 256}, space={_MICRO: (32, 256)})),
    Claim(name="accumulation_diverges", region=Region(-np.inf, -0.005), varies=(_SPLIT,),
        statement="Accumulation over more than 16 micro batches diverges or loses half a point of accuracy or more "
        "against fewer at the same effective batch size, without batch normalization; what diverged counts as 0.",
        published="Attributed to stale gradients, for which there is no mechanism: the gradients of one step are "
        "taken at the same weights.",
        measure=_split(
            lambda trials: count_micro(trials) > 16, lambda trials: ~_depends_on_micro(trials), with_diverged=True
        ),
        design=Design(base={**_WITHOUT_STATISTICS, _GLOBAL: 512}, space={_MICRO: (16, 128)})),
    Claim(name="accumulation_wasteful", region=_MATCHES, varies=(_SPLIT, _RATE),
        statement="Accumulation is wasteful: steps of one micro batch reach the same accuracy within half a point, or "
        "more, at an equal length of training and with the learning rate chosen for each.",
        published="Marek et al. 2025 (arXiv:2507.07101): small batches perform as well or better per FLOP; "
        "accumulation is recommended only for several devices.",
        measure=_tune((_SPLIT, _GLOBAL), lambda trials: count_micro(trials) == 1),
        design=Design(space={_SPLIT: (1, 4), _RATE: _RATES}, spread=TUNED_ACCURACY)),
    Claim(name="batch_instead_of_decay", region=_EQUALS, varies=("batch.schedule", _SCHEDULE),
        statement="A growing batch replaces a falling learning rate: both reach the same accuracy within half a point "
        "at an equal length of training.",
        published="Smith et al. 2017 (arXiv:1711.00489), Wide ResNet-16-4 on CIFAR-10: the same learning curves "
        "against epochs in far fewer updates.",
        measure=_pair((*_GROWTH_KEYS, *_DECAY_KEYS), _grows, lambda trials: _falls(trials) != _grows(trials)),
        design=Design(
            base={_MICRO: 32, "batch.schedule_milestones": "0.5, 0.75", "schedule.gamma": 0.35},
            space={"batch.schedule": ("constant", "stepwise"), _SCHEDULE: ("constant", "step")},
        )),
    Claim(name="batch_warmup", region=_MATCHES, varies=("batch.schedule",),
        statement="A batch that grows during training saves steps without a loss: it loses no more than half a "
        "point of accuracy against the batch it began with.",
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
        measure=_pair((_SCHEDULE,), _of(_SCHEDULE, "linear"), _of(_SCHEDULE, "linear", "cosine")),
        design=Design(space={_SCHEDULE: ("linear", "cosine")})),
    Claim(name="ema_follows_batch", region=_GAINS, varies=(_AVERAGE_RULE,),
        statement="From 4 times the reference batch on, a moving average of the weights whose decay follows the batch "
        "gains half a point of accuracy or more over one that does not.",
        published="Busbridge et al. 2023 (arXiv:2307.13813): the decay is to be raised to the power of the growth of "
        "the batch; otherwise training changes with the batch.",
        sets=("regularization.ema_decay",),
        measure=_pair((_AVERAGE_RULE,), _of(_AVERAGE_RULE, "power"), _averages_large),
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
        metrics=(_MEMORY,), measure=measure_memory_power,
        design=Design(space={}, repeated=_MICRO, low=16, high=512, spread=0.03, lost=3, fewest=6)),
    Claim(name="larger_is_faster", region=Region(1.05, np.inf), unit="ratio", matters=1.05, varies=(_MICRO,),
        statement="A larger micro batch is faster: the last doubling that was tried still gives 5 % throughput or "
        "more.",
        published="Throughput saturates, and epochs to a target grow: MLPerf ResNet-50 reference points 35.0 at batch "
        "1,632, 42.0 at 8,192, 56.0 at 32,768, 84.5 at 65,536.",
        metrics=("images_per_second",), measure=measure_last_doubling,
        design=Design(space={_MICRO: (128, 256)}, spread=PAIRED_TIME)),
    Claim(name="mixed_precision_time", region=Region(0.5, 1 / 1.3), unit="ratio", matters=1.1,
        statement="Mixed precision trains 1.3 to 2 times as fast: its time is 0.5 to 0.77 of full precision's.",
        published="No table; 1.3 to 2 times is the usual claim.",
        varies=(_DTYPE,), metrics=(_TIME,), measure=_compare_precisions(_TIME),
        design=_design_pairs(_DTYPE, ("fp32", "bf16"), PAIRED_TIME)),
    Claim(name="mixed_precision_memory", region=Region(0.4, 0.6), unit="ratio", matters=1.1, varies=(_DTYPE,),
        statement="Mixed precision halves memory: 0.4 to 0.6 of full precision's.",
        published="Weights, gradients and optimizer state stay in full precision under autocast; only activations "
        "shrink.",
        metrics=(_MEMORY,), measure=_compare_precisions(_MEMORY),
        design=_design_pairs(_DTYPE, ("fp32", "bf16"), PAIRED_MEMORY)),
    Claim(name="checkpointing_time", region=Region(1.2, 1.4), unit="ratio", matters=1.1,
        statement="Activation checkpointing costs about 30 % time: 1.2 to 1.4 times.",
        published="Chen et al. 2016: one more forward pass, about 30 %.",
        varies=(_CHECKPOINTING,), metrics=(_TIME,), measure=_compare_checkpointing(_TIME),
        design=_design_pairs(_CHECKPOINTING, (False, True), PAIRED_TIME)),
    Claim(name="checkpointing_memory", region=Region(0.0, 1.0), unit="ratio", matters=1.05,
        statement="Activation checkpointing saves memory.",
        published="Chen et al. 2016: activations of n layers in the space of sqrt(n).",
        varies=(_CHECKPOINTING,), metrics=(_MEMORY,),
        measure=_compare_checkpointing(_MEMORY),
        design=_design_pairs(_CHECKPOINTING, (False, True), PAIRED_MEMORY)),
    Claim(name="three_regimes", region=Region(8.0, 1024.0), unit="samples", matters=2.0, varies=(EFFECTIVE, _RATE),
        statement="Steps to a target fall in proportion to the batch, then less, then no more: the critical batch "
        "between the regimes is among those that were tried.",
        published="McCandlish et al. 2018, critical batch: MNIST 200, SVHN 500, CIFAR-10 900, ImageNet 15,000 "
        "(averages over a run). Shallue et al. 2018 see the three regimes in every workload.",
        sets=("budget.target",), measure=measure_critical_batch,
        design=Design(
            base={"budget.target": 0.9, "budget.max_epochs": 30, _SCHEDULE: "constant"},
            space={_RATE: (0.003, 0.01, 0.03, 0.1, 0.3)}, spread=1.0, lost=2, fewest=8,
            repeated=_MICRO, low=8, high=1024,
        )),
    Claim(name="critical_batch_grows", region=_ABOVE_ZERO, unit="exponent", matters=1.0, varies=(EFFECTIVE, _RATE),
        statement="The critical batch grows as the loss falls, at a constant learning rate: by a power above 0 of "
        "1 / loss.",
        published="Kaplan et al. 2020 (arXiv:2001.08361), text: by its power 4.8 (2e8 tokens at a loss of 1 nat a "
        "token). Zhang et al. 2024 (arXiv:2410.21676): it grows with the data, hardly with the size of the model.",
        sets=(_SCHEDULE,), in_scripts={_SCHEDULE: "script.schedule"}, metrics=("val_loss",),
        measure=measure_critical_growth,
        design=Design(
            base={_OPTIMIZER: "adamw", _SCHEDULE: "constant", "budget.epochs": 20},
            space={_MICRO: (8, 16, 32, 64, 128, 256), _RATE: (0.0003, 0.001, 0.003, 0.01, 0.03)}, spread=1.0,
        )),
    Claim(name="beta2_follows_batch", region=_ABOVE_ZERO, unit="nats", matters=0.02, varies=(_BETA_RULE, _RATE),
        statement="With Adam and steps of one sample, a beta2 that keeps its half-life in samples gives a lower loss "
        "than one that does not follow the batch, both equally tuned.",
        published="Marek et al. 2025 (arXiv:2507.07101), text: one half-life, 10 million tokens, is the best at all "
        "batches from 1 to 1,024; the loss is the lowest at 1, 3.680 (256: 3.736).",
        in_scripts={_BETA_RULE: _HALF_LIFE}, metrics=("val_loss",),
        measure=partial(
            compare_tuned, side=_keeps_half_life, among=_is_single, of_loss=True,
            tested=(_BETA_RULE, _HALF_LIFE, "optimizer.beta2", "script.beta2", "script"),  # "script" holds all of them
        ),
        design=Design(
            base={_OPTIMIZER: "adamw", "optimizer.beta2": 0.95, _MICRO: 1, "rules.reference_batch": 256},
            space={_BETA_RULE: ("none", "half_life"), _RATE: (0.0001, 0.0003, 0.001, 0.003)}, spread=0.03,
        )),
    Claim(name="decay_follows_batch", region=_LINEAR, unit="exponent", matters=0.25, varies=(EFFECTIVE, _DECAY),
        statement="With AdamW the best weight decay grows linearly with the effective batch size, at one learning rate "
        "and equal data: by its power 0.75 to 1.25.",
        published="Bergsma et al. 2025 (arXiv:2505.13738), text: linearly, as batch / (learning rate * decay * data) "
        "has one best value for a model and its data.",
        metrics=("val_loss",), measure=measure_decay_power,
        design=Design(
            base={_OPTIMIZER: "adamw", _RATE: 0.003}, space={_MICRO: _SIZES}, repeated=_DECAY, low=0.003, high=30.0,
            spread=_POWER_SPREAD, fewest=8,
        )),
    Claim(name="noise_scale_temperature", region=Region(0.5, 1.5), unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="The gradient noise scale B_simple, averaged over the training, grows with batch / learning rate: "
        "with the batch by its power 0.5 to 1.5, at equal learning rate and training loss.",
        published="McCandlish et al. 2018: inversely proportional to the temperature, learning rate / batch; ten "
        "times and more over one run.",
        metrics=("num_noise_steps",), measure=measure_noise_power,
        design=Design(  # two micro batches in a step, whose gradients are measured often enough in a short training
            base={"diagnostics.noise_scale": True, _SPLIT: 2, "budget.epochs": 10},
            space={_MICRO: (8, 16, 32, 64, 128)}, repeated=_RATE, low=0.01, high=0.3, fewest=5, spread=_VALUE_SPREAD,
        )),
    Claim(name="large_batches_sharp", region=_ABOVE_ZERO, unit="exponent", matters=0.25, varies=(EFFECTIVE,),
        statement="Large batches end in sharper minima: sharpness grows with the effective batch size, at equal "
        "learning rate and training loss.",
        published="Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data. Dinh et "
        "al. 2017: a network can be made arbitrarily sharp without a change of what it computes.",
        metrics=SHARPNESS, measure=measure_sharpness_power,
        design=Design(
            base={"diagnostics.sharpness": True}, space={_MICRO: _SIZES}, repeated=_RATE, low=0.01, high=0.3, fewest=5,
            spread=_VALUE_SPREAD,
        )),
)  # fmt: skip
