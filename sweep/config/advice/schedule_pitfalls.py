"""Pitfalls of warm-up, schedules of the learning rate and growing batches."""

from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice, Pitfall
from sweep.config.study import StudySpec
from sweep.config.tables.recipes import OPTIMIZERS, SCHEDULES
from sweep.config.trial_config import TrialConfig

_WARMUP_FROM = 8  # times the reference batch, Goyal et al. 2017


def _no_warmup(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    bare = [
        config
        for config in corners
        if _warmup(config) == 0 and config.global_batch_size >= _WARMUP_FROM * config.rules.reference_batch
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
    names = ("betas", "weight_decay", "ema", "label_smoothing", "dropout")
    return [f"rules.{name}" for name in names if getattr(config.rules, name) != "none"]


SCHEDULE_PITFALLS: tuple[Pitfall, ...] = (
    _no_warmup,
    _schedule_free_decays,
    _seesaw_beside_a_decay,
    _seesaw_of_sgd,
    _rules_of_first_batch,
)
