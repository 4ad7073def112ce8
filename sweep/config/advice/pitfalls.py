"""All pitfalls of a study, and those of batch, schedule and budget."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice, Pitfall, is_swept
from sweep.config.advice.data_pitfalls import find_late_branches, find_oversized_batches
from sweep.config.advice.rule_pitfalls import RULE_PITFALLS
from sweep.config.errors import InputError
from sweep.config.recipe_sections import OptimizerSection
from sweep.config.scaling import resolve_lr_rule
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.tables.models import has_batch_statistics
from sweep.config.tables.recipes import OPTIMIZERS, SCHEDULES
from sweep.config.trial_config import TrialConfig
from sweep.config.units import format_count

_MAX_ACCUMULATION = 16
_WARMUP_FROM = 8  # times the reference batch, Goyal et al. 2017
_FEW_SAMPLES = 16  # of a batch normalization's statistics
_LARGE_FINE_TUNING = 128
_SECTIONS = frozenset({"batch", "model", "optimizer", "schedule", "budget", "distributed"})
_UNSEEN = frozenset({"optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "model.dropout"})
_SEEN = "regularization.ema_rule"
_MAX_CORNERS = 1024


def find_pitfalls(spec: StudySpec) -> list[Advice]:
    """Every known pitfall of the study, in a fixed order; empty for a study without one."""
    corners = _corners(spec)
    return [item for pitfall in _PITFALLS for item in pitfall(spec, corners)]


def find_data_pitfalls(spec: StudySpec, num_train: int | None) -> list[Advice]:
    """The pitfalls of the study with a training split of ``num_train`` images; None where they are not counted."""
    corners = _corners(spec)
    return [*find_oversized_batches(spec, corners, num_train), *find_late_branches(corners, num_train)]


def _corners(spec: StudySpec) -> list[TrialConfig]:
    # the extremes of what the rules look at; everything else stays at one corner
    seen = [
        path for path in spec.space if path == _SEEN or (path.partition(".")[0] in _SECTIONS and path not in _UNSEEN)
    ]
    start = next(spec.corners())
    values = itertools.product(*(spec.space[path].extremes() for path in seen))
    found = []
    for point in itertools.islice(values, _MAX_CORNERS):
        with contextlib.suppress(InputError):  # two keys that do not go together
            found.append(spec.config(start | dict(zip(seen, point, strict=True))))
    return found or [spec.config(start)]


def _much_accumulation(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    most = max(config.num_accumulation for config in corners)
    if most > _MAX_ACCUMULATION:
        yield Advice(
            "much_accumulation",
            "batch.accumulation",
            f"Up to {most} micro batches make one optimizer step.",
            f"Beyond {_MAX_ACCUMULATION} the saving in memory is small: parameters, gradients and optimizer state "
            "stay, and every step waits for all its micro batches.",
            "raise batch.micro, or lower batch.accumulation or batch.global",
            "accumulation_memory",
        )


def _rate_does_not_follow(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = [config.global_batch_size for config in corners]
    is_unscaled = any(config.optimizer.lr_rule == "none" for config in corners)
    if max(sizes) >= 4 * min(sizes) and is_unscaled and not is_swept(spec, "optimizer.lr"):
        names = {config.optimizer.name for config in corners}
        rule = resolve_lr_rule(OptimizerSection.model_construct(name=min(names), lr_rule="auto"))
        yield Advice(
            "rate_does_not_follow",
            "optimizer.lr_rule",
            f"The effective batch size varies from {min(sizes)} to {max(sizes)} at one learning rate.",
            "A larger batch requires a larger rate; otherwise the study measures an unsuitable rate, not a batch. "
            "Goyal et al. 2017, ResNet-50 at 8k: 41.67 % error unscaled, 23.74 % scaled.",
            'set optimizer.lr_rule = "auto", or sweep optimizer.lr',
            f"lr_rule_{rule}",
        )


def _no_warmup(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    bare = [
        config
        for config in corners
        if _warmup(config) == 0 and config.global_batch_size >= _WARMUP_FROM * config.optimizer.reference_batch
    ]
    if bare:
        largest = max(config.global_batch_size for config in bare)
        yield Advice(
            "no_warmup",
            "schedule.warmup",
            f"An effective batch size of {largest} trains without warm-up, {_WARMUP_FROM} times the reference batch or "
            "more.",
            "Early steps at a high rate disturb training. Goyal et al. 2017, ResNet-50 at 8k: 24.84 % error without, "
            "23.74 % with gradual warm-up.",
            'set schedule.warmup = 0.1, or "5 epochs"',
            "warmup_needed",
        )


def _warmup(config: TrialConfig) -> float:
    schedule = config.apply_rules().schedule
    return schedule.peak if SCHEDULES[schedule.name].has_peak else schedule.warmup


def _schedule_free_decays(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    averaged = [config for config in corners if OPTIMIZERS[config.optimizer.name].averages_weights]
    falling = sorted({config.schedule.name for config in averaged if _falls(config)})
    if falling:
        yield Advice(
            "schedule_free_decays",
            "schedule.name",
            f"A schedule-free optimizer trains at a rate that falls ({', '.join(falling)}).",
            "The average of the weights takes the place of the decay: Defazio et al. 2024 hold the rate constant after "
            "the warm-up. A falling rate gives the last steps next to no weight in the average.",
            'set schedule.name = "constant"',
        )


def _falls(config: TrialConfig) -> bool:
    schedule = config.schedule
    if SCHEDULES[schedule.name].has_milestones:
        return schedule.gamma < 1
    return schedule.name != "constant" and schedule.final < 1


def _seesaw_beside_a_decay(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    falling = sorted({config.schedule.name for config in corners if _grows_by_seesaw(config) and _falls(config)})
    if falling:
        yield Advice(
            "seesaw_beside_a_decay",
            "schedule.name",
            f'batch.schedule_lr = "seesaw" with a rate that falls by itself ({", ".join(falling)}).',
            "The growth of the batch and the smaller fall of the rate take the place of a decay (Meterez et al. 2025). "
            "With both, the training is decayed twice.",
            'set schedule.name = "constant", or batch.schedule_lr = "keep"',
        )


def _seesaw_of_sgd(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    names = {config.optimizer.name for config in corners if _grows_by_seesaw(config)}
    if linear := sorted(name for name in names if OPTIMIZERS[name].lr_rule == "linear"):
        yield Advice(
            "seesaw_of_sgd",
            "batch.schedule_lr",
            f'batch.schedule_lr = "seesaw" with {", ".join(linear)}.',
            "The square root is that of Adam's normalized steps (Meterez et al. 2025). For SGD a batch that is a times "
            "larger has the effect of a rate that is a times smaller, with the rate unchanged (Smith et al. 2017).",
            'set batch.schedule_lr = "keep", or an optimizer of the Adam family',
        )


def _grows_by_seesaw(config: TrialConfig) -> bool:
    return config.batch.schedule_lr == "seesaw" and config.batch.schedule != "constant"


def _rules_of_first_batch(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    found = {rule for config in corners for rule in _rules_left_behind(config)}
    if found:
        yield Advice(
            "rules_of_first_batch",
            "batch.schedule_lr",
            f"The learning rate follows the growing batch; {', '.join(sorted(found))} stay at the first one's.",
            "These values are set once, for the first effective batch size. The rules do not hold for the later, "
            "larger ones.",
            'set batch.schedule_lr = "keep", or these rules to "none"',
        )


def _rules_left_behind(config: TrialConfig) -> list[str]:
    if config.batch.schedule == "constant" or config.batch.schedule_lr != "rule":
        return []
    rules = {
        "optimizer.betas_rule": config.optimizer.betas_rule,
        "optimizer.weight_decay_rule": config.optimizer.weight_decay_rule,
        "regularization.ema_rule": config.regularization.ema_rule,
        "regularization.label_smoothing_rule": config.regularization.label_smoothing_rule,
        "model.dropout_rule": config.model.dropout_rule,
    }
    return [key for key, rule in rules.items() if rule != "none"]


def _few_samples_to_normalize(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    normed = [
        config.micro_batch
        for config in corners
        if config.model.norm == "batch"
        and has_batch_statistics(config.model.name, "batch")
        and not config.batch.is_auto
    ]
    smallest = min(normed, default=_FEW_SAMPLES)
    if smallest < _FEW_SAMPLES:
        yield Advice(
            "few_samples_to_normalise",
            "model.norm",
            f"Batch normalization takes its statistics from micro batches of {smallest}.",
            f"Below {_FEW_SAMPLES} samples they are noisy, and accumulation does not help, because they are computed "
            "for each micro batch alone. Goyal et al. 2017 keep 32 samples on each worker.",
            'raise batch.micro, or set model.norm = "group"; on several ranks model.norm = "sync"',
            "accumulation_batch_norm",
        )


def _large_batch_for_fine_tuning(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    tuned = [config.global_batch_size for config in corners if config.model.weights is not None]
    if tuned and max(tuned) > _LARGE_FINE_TUNING:
        yield Advice(
            "large_batch_for_fine_tuning",
            "batch.micro",
            f"Training from given weights with an effective batch size of up to {max(tuned)}.",
            "Few steps are left to move from the given weights, and a rate that suits the batch undoes them; 16 to 64 "
            "samples and a rate 10 to 100 times smaller are the rule of thumb.",
            "add smaller batches to the space, and sweep optimizer.lr downwards",
            "small_batches_best",
        )


def _only_fixed_epochs(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = [config.global_batch_size for config in corners]
    in_epochs = all(config.budget.samples is not None or _has_equal_epochs(config) for config in corners)
    if in_epochs and max(sizes) >= 4 * min(sizes) and not is_swept(spec, "budget.epochs", "budget.samples"):
        yield Advice(
            "only_fixed_epochs",
            "budget.epochs",
            f"Batches from {min(sizes)} to {max(sizes)} are compared at equal epochs only.",
            f"The largest then takes {max(sizes) // min(sizes)} times fewer steps, so that the study cannot tell a "
            "worse batch from a shorter training (Shallue et al. 2018; Hoffer et al. 2017).",
            "run the study once more with budget.steps, or with budget.target_accuracy, under another name",
            "large_batch_equal_steps",
        )


def _has_equal_epochs(config: TrialConfig) -> bool:
    return config.budget.epochs is not None and config.budget.epochs_rule == "none"


def _one_seed(spec: StudySpec, _corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    if not spec.confirm.most_trials:
        yield Advice(
            "one_seed",
            "confirm",
            "Nothing is trained again with fresh seeds.",
            "The best of many single seeds looks better than it is, and without repeats the spread between seeds is "
            "unknown, so that no confidence interval can be given.",
            "remove the key confirm, whose default confirms as much as the answer requires",
        )
    elif spec.confirm.seeds < FEWEST_SEEDS:
        yield Advice(
            "one_seed",
            "confirm.seeds",
            f"With {format_count(spec.confirm.seeds, 'fresh seed')} nothing can be recommended.",
            f"What is recommended was trained with at least {FEWEST_SEEDS} fresh seeds; from fewer, neither its mean "
            "nor the spread between seeds is known well enough.",
            f"set confirm.seeds to {FEWEST_SEEDS} or more; seeds that settle nothing are not trained",
        )


_PITFALLS: tuple[Pitfall, ...] = (
    _much_accumulation,
    _rate_does_not_follow,
    _no_warmup,
    _schedule_free_decays,
    _seesaw_beside_a_decay,
    _seesaw_of_sgd,
    _rules_of_first_batch,
    *RULE_PITFALLS,
    _few_samples_to_normalize,
    _large_batch_for_fine_tuning,
    _only_fixed_epochs,
    _one_seed,
)
