"""Advice on a study before it runs: known pitfalls, each with its reason. What cannot work at all is refused where a
configuration is validated."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sweep.config.errors import InputError
from sweep.config.metrics import format_count
from sweep.config.study import FEWEST_SEEDS, StudySpec, is_batch_key
from sweep.config.tables import FEW_OF_NORM, OPTIMIZERS, SCHEDULES, has_batch_statistics
from sweep.config.trial import EFFECTS, Scalar, TrialConfig, default_settings, flatten_config, has_effect


class Advice(NamedTuple):
    """One pitfall: ``key`` to change, ``statement`` what is the case, ``reason`` why that matters, ``remedy`` what to
    write instead; ``finding`` the name of the claim in the findings that measures it, "" where there is none."""

    name: str
    key: str
    statement: str
    reason: str
    remedy: str
    finding: str = ""


class _Case(NamedTuple):
    """What the conditions read. ``num_train`` is None where the training images are not counted."""

    spec: StudySpec
    corners: Sequence[TrialConfig]
    num_train: int | None

    @property
    def sizes(self) -> list[int]:
        """The effective batch sizes, ascending."""
        return sorted({config.global_batch_size for config in self.corners})

    @property
    def varies_widely(self) -> bool:
        """Whether the largest batch is at least four times the smallest."""
        return self.sizes[-1] >= 4 * self.sizes[0]

    @property
    def batch_key(self) -> str:
        """The first swept key that decides the batch size."""
        return next(filter(is_batch_key, self.spec.space), "batch.micro")

    def is_swept(self, *keys: str) -> bool:
        """Whether the study varies one of the keys."""
        return any(key in self.spec.space for key in keys)


# What a condition inserts into the texts of its pitfall; None where the pitfall does not apply. "key" and "finding"
# replace the values of the row.
_Facts = Mapping[str, object] | None


class _Pitfall(NamedTuple):
    """A row of the table: the ``condition`` under which it applies, and texts with the facts in braces."""

    name: str
    key: str
    condition: Callable[[_Case], _Facts]
    statement: str
    reason: str
    remedy: str
    finding: str = ""

    def advise(self, case: _Case) -> Advice | None:
        """The advice where the condition holds."""
        facts = self.condition(case)
        if facts is None:
            return None
        statement, reason, remedy = (text.format(**facts) for text in (self.statement, self.reason, self.remedy))
        key, finding = (str(facts.get(name, getattr(self, name))) for name in ("key", "finding"))
        return Advice(self.name, key, statement, reason, remedy, finding)


def find_pitfalls(spec: StudySpec, num_train: int | None = None) -> list[Advice]:
    """Every known pitfall of the study with ``num_train`` training images (None: not counted), in a fixed order. A key
    that is ``deliberate`` draws no advice, nor does one where the study also tries a value without the pitfall."""
    case = _Case(spec, _list_corners(spec), num_train)
    rows = _OF_SCRIPTS if spec.script else _PITFALLS
    advised = [(pitfall, advice) for pitfall in rows if (advice := pitfall.advise(case))]
    return [
        advice
        for pitfall, advice in advised
        if advice.key not in spec.deliberate and not _is_compared(case, pitfall, advice.key)
    ]


def _is_compared(case: _Case, pitfall: _Pitfall, key: str) -> bool:
    # batch sizes are the question of every study, so that advice on them holds wherever it applies
    if key not in case.spec.space or key in _BATCH_SIZE:
        return False
    by_value: dict[Scalar, list[TrialConfig]] = {}
    for config in case.corners:
        by_value.setdefault(flatten_config(config)[key], []).append(config)
    advised = [pitfall.advise(case._replace(corners=group)) for group in by_value.values()]
    return any(advice is None or advice.key != key for advice in advised)


_BATCH_SIZE = frozenset({"batch.micro", "batch.accumulation", "batch.global"})
_SECTIONS = frozenset({"batch", "model", "optimizer", "rules", "schedule", "budget", "distributed"})
_UNSEEN = frozenset({"optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "model.dropout"})


def _list_corners(spec: StudySpec) -> list[TrialConfig]:
    # only keys that a condition reads take all their extremes
    paths = [path for path in spec.space if path.partition(".")[0] in _SECTIONS and path not in _UNSEEN]
    corners = []
    for point in spec.corners.points(paths):
        with contextlib.suppress(InputError):  # two keys that do not go together
            corners.append(spec.corners.at(point))
    return corners or [spec.corners.first]


# ------------------------------------------------------------------ conditions

_WARMUP_FROM = 8  # times the reference batch, Goyal et al. 2017
_FEW_EPOCHS = 20
_WIDE_BETA2 = 8  # times the smallest batch: the half-life of beta2 in samples is then as many times longer


def _accumulates_much(case: _Case) -> _Facts:
    most = max(config.num_accumulation for config in case.corners)
    return {"most": most} if most > 16 else None


def _normalizes_few(case: _Case) -> _Facts:
    smallest = min(map(_count_normalized, case.corners))
    return {"smallest": smallest} if smallest < FEW_OF_NORM else None


def _count_normalized(config: TrialConfig) -> float:
    # the samples behind a statistic; infinite where there is no statistic, or where that is not known
    norm, ranks = config.model.norm, config.distributed.world_size
    if config.batch.is_auto or not has_batch_statistics(config.model.name, norm):
        return math.inf
    samples = min(config.micro_batch, math.ceil(config.global_batch_size / ranks))
    if norm == "ghost":
        return min(samples, config.model.ghost_batch)
    return samples * ranks if norm == "sync" else samples


def _has_equal_epochs_only(case: _Case) -> _Facts:
    sizes = case.sizes
    in_epochs = all(
        config.budget.samples is not None or (config.budget.epochs is not None and config.rules.epochs == "none")
        for config in case.corners
    )
    if not in_epochs or not case.varies_widely or case.is_swept("budget.epochs", "budget.samples"):
        return None
    return {"smallest": sizes[0], "largest": sizes[-1], "times": sizes[-1] // sizes[0]}


def _lacks_warmup(case: _Case) -> _Facts:
    bare = []
    for config in case.corners:
        schedule = config.apply_rules().schedule
        warmup = schedule.peak if SCHEDULES[schedule.name].has_peak else schedule.warmup
        if warmup == 0 and config.global_batch_size >= _WARMUP_FROM * config.rules.reference_batch:
            bare.append(config.global_batch_size)
    return {"largest": max(bare)} if bare else None


def _lets_average_decay(case: _Case) -> _Facts:
    falling = {
        config.schedule.name
        for config in case.corners
        if OPTIMIZERS[config.optimizer.name].averages_weights
        and config.schedule.name != "constant"
        and (SCHEDULES[config.schedule.name].has_milestones or config.schedule.final < 1)
    }
    return {"names": ", ".join(sorted(falling))} if falling else None


def _leaves_rate(case: _Case) -> _Facts:
    is_unscaled = any(config.rules.lr == "none" for config in case.corners)
    if not case.varies_widely or not is_unscaled or case.is_swept("optimizer.lr"):
        return None
    rule = OPTIMIZERS[min(config.optimizer.name for config in case.corners)].lr_rule
    return {"smallest": case.sizes[0], "largest": case.sizes[-1], "finding": f"lr_rule_{rule}"}


def _has_no_effect(case: _Case, path: str, requires: str, through: Sequence[str]) -> _Facts:
    spec, default = case.spec, default_settings()[path]
    is_given = path in spec.space or spec.base.get(path, default) != default
    if not is_given or case.is_swept(*through) or any(has_effect(path, flatten_config(each)) for each in case.corners):
        return None
    value = "several values" if path in spec.space else repr(spec.base[path])
    return {"path": path, "value": value, "requires": requires}


def _lacks_reference(case: _Case) -> _Facts:
    key, sizes, reference = "rules.reference_batch", case.sizes, case.corners[0].rules.reference_batch
    if key in case.spec.base or case.is_swept(key) or sizes[0] <= reference <= sizes[-1]:
        return None
    flat = [flatten_config(config) for config in case.corners]
    rules = [rule for rule in EFFECTS[key][0] if any(values[rule] != "none" for values in flat)]
    if not rules:
        return None
    return {"rules": ", ".join(rules), "reference": reference, "smallest": sizes[0], "largest": sizes[-1]}


def _fine_tunes_at_large_batches(case: _Case) -> _Facts:
    largest = max((each.global_batch_size for each in case.corners if each.model.weights is not None), default=0)
    return {"largest": largest} if largest > 128 else None


def _repeats_too_little(case: _Case) -> _Facts:
    confirm = case.spec.confirm
    if case.is_swept("seed") or confirm.least_trials >= FEWEST_SEEDS:
        return None
    return {"seeds": format_count(confirm.least_trials, "fresh seed"), "fewest": FEWEST_SEEDS}


def _find_fixed_beta2(case: _Case) -> _Facts:
    spec, widely = case.spec, case.sizes[-1] >= _WIDE_BETA2 * case.sizes[0]
    given = [key for key in ("optimizer.beta2", "script.beta2") if key in spec.base]
    follows = spec.base.get("script.beta2_halflife") or case.is_swept("script.beta2_halflife")
    if not given or not widely or follows:
        return None
    return {"key": given[0], "beta2": spec.base[given[0]], "smallest": case.sizes[0], "largest": case.sizes[-1]}


def _leaves_law(case: _Case) -> _Facts:
    key, known = "script.schedule", "constant"
    value = case.spec.base.get(key, known)
    return None if case.is_swept(key) or value == known or len(case.sizes) < 2 else {"schedule": value}


def _exceeds_data(case: _Case) -> _Facts:
    if case.num_train is None or case.sizes[-1] <= case.num_train:
        return None
    return {"largest": case.sizes[-1], "num_train": case.num_train, "key": case.batch_key}


def _grows_shortly(case: _Case) -> _Facts:
    if any(config.batch.schedule == "constant" for config in case.corners):
        return None
    lengths = [_count_most_epochs(config, case.num_train) for config in case.corners]
    shortest = min((epochs for epochs in lengths if epochs is not None), default=math.inf)
    return {"epochs": shortest, "schedule": case.corners[0].batch.schedule} if shortest <= _FEW_EPOCHS else None


def _count_most_epochs(config: TrialConfig, num_train: int | None) -> float | None:
    # that the budget allows; None where that is not known
    budget = config.apply_rules().budget
    if budget.target is not None:
        return budget.max_epochs
    if budget.epochs is not None or not num_train:
        return budget.epochs
    growth = 1.0 if config.batch.schedule == "constant" else config.batch.schedule_factor
    largest = min(growth * config.global_batch_size, num_train)
    samples = budget.steps * largest if budget.steps else budget.samples
    return samples / num_train if samples else None


# ------------------------------------------------------------------ the pitfalls


def _list_effects() -> list[_Pitfall]:
    # a row for some keys that have an effect only with others: what to set, and which swept keys excuse it
    dropout, decay, smoothing = "model.dropout", "optimizer.weight_decay", "regularization.label_smoothing"
    rows: list[tuple[str, str, tuple[str, ...]]] = [
        ("rules.betas", "an optimizer that has betas, such as adamw", ()),
        ("rules.weight_decay", f"{decay} above 0", (decay,)),
        ("rules.warmup", "schedule.warmup above 0 and another schedule.name than triangular", ()),
        ("rules.dropout", f"{dropout} above 0", (dropout,)),
        ("schedule.decay_share", 'schedule.name = "wsd"', ()),
        ("batch.schedule_lr", 'a batch.schedule other than "constant"', ()),
        ("batch.plateau_patience", 'batch.schedule = "plateau"', ()),
        ("rules.label_smoothing", f"{smoothing} above 0", (smoothing,)),
        ("data.prefetch", "data.workers above 0", ("data.workers",)),
        ("model.norm_momentum", 'a ResNet with model.norm = "batch", "ghost" or "sync"', ()),
    ]
    return [
        _Pitfall(
            "key_without_effect", path,
            partial(_has_no_effect, path=path, requires=requires, through=through),
            "{path} has {value}, and no training of the study depends on it.",
            "It has an effect only with {requires}. Trials that differ in nothing else are equal.",
            "set {requires}, or leave {path} out",
        )
        for path, requires, through in rows
    ]  # fmt: skip


_PITFALLS = (
    _Pitfall("only_large_batches", "batch.micro",
        lambda case: {"smallest": case.sizes[0], "key": case.batch_key} if case.sizes[0] >= 512 else None,
        "The smallest effective batch size is {smallest}.",
        "The largest batch that fits is seldom the one to use: beyond the throughput knee it saves no time, and "
        "at equal epochs it takes fewer steps. A study without smaller ones cannot show what they would give; a "
        "usual start is 128 to 256.",
        "add effective batch sizes from 128 on to the space",
        "large_batch_equal_epochs"),
    _Pitfall("much_accumulation", "batch.accumulation", _accumulates_much,
        "Up to {most} micro batches make one optimizer step.",
        "Beyond 16 the saving in memory is small: parameters, gradients and optimizer state "
        "stay, and every step waits for all its micro batches.",
        "raise batch.micro, or lower batch.accumulation or batch.global",
        "accumulation_memory"),
    _Pitfall("few_samples_to_normalise", "model.norm", _normalizes_few,
        "Batch normalization takes each of its statistics from {smallest:g} samples.",
        "Below 16 samples they are noisy, and accumulation does not help, because they are computed "
        "for each micro batch alone. Goyal et al. 2017 keep 32 samples on each worker.",
        'raise batch.micro (with model.norm = "ghost" also model.ghost_batch), or set model.norm = "group"; on '
        'several ranks model.norm = "sync"',
        "small_batch_norm"),
    _Pitfall("only_fixed_epochs", "budget.epochs", _has_equal_epochs_only,
        "Batches from {smallest} to {largest} are compared at equal epochs only.",
        "The largest then takes {times} times fewer steps, so that the study cannot tell a "
        "worse batch from a shorter training (Shallue et al. 2018; Hoffer et al. 2017).",
        "run the study once more with budget.steps, or with budget.target, under another name",
        "large_batch_equal_steps"),
    _Pitfall("no_warmup", "schedule.warmup", _lacks_warmup,
        "An effective batch size of {largest} trains without warm-up, 8 times the reference batch or more.",
        "Early steps at a high rate disturb training. Goyal et al. 2017, ResNet-50 at 8k: 24.84 % error without, "
        "23.74 % with gradual warm-up.",
        'set schedule.warmup = 0.1, or "5 epochs"',
        "warmup_needed"),
    _Pitfall("schedule_free_decays", "schedule.name", _lets_average_decay,
        "A schedule-free optimizer trains at a rate that falls ({names}).",
        "The average of the weights takes the place of the decay: Defazio et al. 2024 hold the rate constant after "
        "the warm-up. A falling rate gives the last steps next to no weight in the average.",
        'set schedule.name = "constant"'),
    _Pitfall("rate_does_not_follow", "rules.lr", _leaves_rate,
        "The effective batch size varies from {smallest} to {largest} at one learning rate.",
        "A larger batch requires a larger rate; otherwise the study measures an unsuitable rate, not a batch. "
        "Goyal et al. 2017, ResNet-50 at 8k: 41.67 % error unscaled, 23.74 % scaled.",
        'set rules.lr = "auto", or sweep optimizer.lr'),
    *_list_effects(),
    _Pitfall("rule_without_reference", "rules.reference_batch", _lacks_reference,
        "By {rules} values count from an effective batch size of {reference}, which the study neither "
        "states nor trains: its sizes are {smallest} to {largest}.",
        "All values hold as they are written at that batch size alone. Values that were found at another one are "
        "multiplied by a factor that was not intended.",
        "set rules.reference_batch to the effective batch size at which the written values are good, {reference} "
        "if it is that"),
    _Pitfall("large_batch_for_fine_tuning", "batch.micro", _fine_tunes_at_large_batches,
        "Training from given weights with an effective batch size of up to {largest}.",
        "Few steps are left to move from the given weights, and a rate that suits the batch undoes them; 16 to 64 "
        "samples and a rate 10 to 100 times smaller are the rule of thumb.",
        "add smaller batches to the space, and sweep optimizer.lr downwards",
        "fine_tune_small_batches"),
    _Pitfall("one_seed", "confirm", _repeats_too_little,
        "With {seeds} nothing can be recommended.",
        "The best of many single seeds looks better than it is. What is recommended was trained with at least {fewest} "
        "fresh seeds; from fewer, neither its mean nor the spread between seeds is known well enough.",
        "remove the key confirm, whose default confirms as much as the answer requires"),
    _Pitfall("batch_exceeds_data", "batch.micro", _exceeds_data,
        "The effective batch size reaches {largest:,}, and the training split has {num_train:,} images.",
        "A step takes at most the images of one epoch, so every batch size above {num_train:,} trains with the "
        "same full-batch steps: such trials differ in name only.",
        "lower the upper end of batch.* to at most {num_train:,} effective samples, or use more data"),
    _Pitfall("growth_on_short_training", "batch.schedule", _grows_shortly,
        "The batch grows during trainings of {epochs:.3g} epochs.",
        "In 20 epochs or fewer hardly any step is left for the large batches that the growth is for, "
        "and nothing shows what it brings; 100 epochs or more are the rule of thumb.",
        'set batch.schedule = "constant", lengthen the budget, or compare both: "batch.schedule" = {{ choice = '
        '["constant", "{schedule}"] }}',
        "batch_warmup"),
)  # fmt: skip

# Of a study whose trials are a script: what the model, the data and the schedule of this project would meet does not
# concern it.
_OF_SCRIPTS = (
    *(row for row in _PITFALLS if row.name in ("only_large_batches", "much_accumulation", "one_seed")),
    _Pitfall("beta2_does_not_follow", "optimizer.beta2", _find_fixed_beta2,
        "The effective batch size varies from {smallest} to {largest} at one beta2, {beta2}.",
        "The second moment then averages over {largest} samples a step at one end and {smallest} at the other. Marek "
        "et al. 2025 (arXiv:2507.07101) keep its half-life in tokens, with which small batches train well; at one "
        "beta2 they lose.",
        "let the script compute beta2 = 0.5 ** (tokens of a step / half-life), or sweep {key}"),
    _Pitfall("law_of_steps_does_not_hold", "script.schedule", _leaves_law,
        "The learning rate follows the schedule {schedule!r}.",
        "The critical batch by the steps to a target is a law for constant rates (McCandlish et al. 2018): a rate that "
        "falls with the end of the training makes the steps to a target depend on the length.",
        'set script.schedule = "constant" for a statement about the critical batch; other statements hold'),
)  # fmt: skip
