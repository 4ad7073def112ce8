"""Pitfalls of the rules by which values of a recipe follow the effective batch size."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sweep.config.advice.advice_item import Advice, Pitfall, is_swept, list_sizes, vary_widely
from sweep.config.recipe_sections import OptimizerSection, RulesSection
from sweep.config.scaling import scale_lr
from sweep.config.study import StudySpec
from sweep.config.tables.models import has_batch_statistics
from sweep.config.tables.recipes import OPTIMIZERS, SCHEDULES
from sweep.config.trial_config import TrialConfig, default_settings, flatten_config


class _Effect(NamedTuple):
    """When the key ``path`` has an effect: ``holds`` for a configuration, or a key of ``through`` is swept."""

    path: str
    holds: Callable[[TrialConfig], bool]
    requires: str
    through: tuple[str, ...] = ()


_EFFECTS = (
    _Effect(
        "rules.betas",
        lambda config: OPTIMIZERS[config.optimizer.name].has_betas,
        "an optimizer that has betas, such as adamw",
    ),
    _Effect(
        "rules.weight_decay",
        lambda config: config.optimizer.weight_decay > 0,
        "optimizer.weight_decay above 0",
        ("optimizer.weight_decay",),
    ),
    _Effect(
        "rules.warmup",
        lambda config: config.schedule.warmup > 0 and not SCHEDULES[config.schedule.name].has_peak,
        "schedule.warmup above 0 and another schedule.name than triangular",
    ),
    _Effect("rules.dropout", lambda config: config.model.dropout > 0, "model.dropout above 0", ("model.dropout",)),
    _Effect(
        "schedule.decay_share",
        lambda config: SCHEDULES[config.schedule.name].is_stable_first,
        'schedule.name = "wsd"',
    ),
    _Effect(
        "batch.schedule_lr",
        lambda config: config.batch.schedule != "constant",
        'a batch.schedule other than "constant"',
    ),
    *(
        _Effect(key, lambda config: config.batch.schedule == "plateau", 'batch.schedule = "plateau"')
        for key in ("batch.plateau_patience", "batch.plateau_threshold")
    ),
    _Effect(
        "rules.label_smoothing",
        lambda config: config.regularization.label_smoothing > 0,
        "regularization.label_smoothing above 0",
        ("regularization.label_smoothing",),
    ),
    _Effect("data.prefetch", lambda config: config.data.workers > 0, "data.workers above 0", ("data.workers",)),
    _Effect(
        "model.norm_momentum",
        lambda config: has_batch_statistics(config.model.name, config.model.norm) is not False,
        'a ResNet with model.norm = "batch", "ghost" or "sync"',
    ),
)


def _without_effect(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    for effect in _EFFECTS:
        if _is_given(spec, effect.path) and not (is_swept(spec, *effect.through) or any(map(effect.holds, corners))):
            value = "several values" if effect.path in spec.space else repr(spec.base[effect.path])
            yield Advice(
                "key_without_effect",
                effect.path,
                f"{effect.path} has {value}, and no training of the study depends on it.",
                f"It has an effect only with {effect.requires}. Trials that differ in nothing else are equal.",
                f"set {effect.requires}, or leave {effect.path} out",
            )


def _is_given(spec: StudySpec, path: str) -> bool:
    return path in spec.space or spec.base.get(path, default_settings()[path]) != default_settings()[path]


def _rule_without_reference(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    key = "rules.reference_batch"
    sizes, reference = list_sizes(corners), corners[0].rules.reference_batch
    if key in spec.base or key in spec.space or sizes[0] <= reference <= sizes[-1]:
        return
    rules = [f"rules.{name}" for name in RulesSection.model_fields if name != "reference_batch"]
    flat = [flatten_config(config) for config in corners]
    if rules := [rule for rule in rules if any(values[rule] != "none" for values in flat)]:
        yield Advice(
            "rule_without_reference",
            key,
            f"By {', '.join(rules)} values count from an effective batch size of {reference}, which the study neither "
            f"states nor trains: its sizes are {sizes[0]} to {sizes[-1]}.",
            "All values hold as they are written at that batch size alone. Values that were found at another one are "
            "multiplied by a factor that was not intended.",
            f"set {key} to the effective batch size at which the written values are good, {reference} if it is that",
        )


def _timescale_of_another_decay(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    chosen = [config.optimizer.name for config in corners if config.rules.weight_decay == "timescale"]
    names = sorted({name for name in chosen if not OPTIMIZERS[name].decays_by_lr})
    if names:
        yield Advice(
            "timescale_of_another_decay",
            "rules.weight_decay",
            f'rules.weight_decay = "timescale" with {", ".join(names)}.',
            "Its timescale is that of weights from which each step takes lr x weight_decay away, as AdamW does (Wang "
            "and Aitchison 2024). Here the decay also depends on the size of gradients or weights.",
            'set optimizer.name = "adamw", or rules.weight_decay to "none", "linear" or "sqrt"',
        )


def _rate_does_not_follow(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = list_sizes(corners)
    is_unscaled = any(config.rules.lr == "none" for config in corners)
    if vary_widely(sizes) and is_unscaled and not is_swept(spec, "optimizer.lr"):
        names = {config.optimizer.name for config in corners}
        rule = OPTIMIZERS[min(names)].lr_rule
        yield Advice(
            "rate_does_not_follow",
            "rules.lr",
            f"The effective batch size varies from {sizes[0]} to {sizes[-1]} at one learning rate.",
            "A larger batch requires a larger rate; otherwise the study measures an unsuitable rate, not a batch. "
            "Goyal et al. 2017, ResNet-50 at 8k: 41.67 % error unscaled, 23.74 % scaled.",
            'set rules.lr = "auto", or sweep optimizer.lr',
            f"lr_rule_{rule}",
        )


def _decay_does_not_follow(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    decayed = [config for config in corners if _leaves_decay(config.optimizer, config.rules)]
    sizes = list_sizes(decayed)
    if vary_widely(sizes) and not is_swept(spec, "optimizer.weight_decay"):
        by_lr = all(OPTIMIZERS[config.optimizer.name].decays_by_lr for config in decayed)
        rule = "timescale" if by_lr else "sqrt"
        yield Advice(
            "decay_does_not_follow",
            "rules.weight_decay",
            f"The effective batch size varies from {sizes[0]} to {sizes[-1]} at one weight decay.",
            "A larger batch takes fewer steps in an epoch, in each of which the weights decay by a share: large "
            "batches are regularized less. The best timescale of the decay is stable in epochs (Wang and Aitchison "
            "2024).",
            f'set rules.weight_decay = "{rule}", or sweep optimizer.weight_decay',
            f"weight_decay_{rule}",
        )


def _leaves_decay(section: OptimizerSection, rules: RulesSection) -> bool:
    # whether the decay of an epoch changes with the batch; a rate that grows in proportion to it makes up for the steps
    rises_with_rate = OPTIMIZERS[section.name].decays_by_lr and math.isclose(
        scale_lr(section, rules, 2 * rules.reference_batch), 2 * section.lr
    )
    return section.weight_decay > 0 and rules.weight_decay == "none" and not rises_with_rate


RULE_PITFALLS: tuple[Pitfall, ...] = (
    _rate_does_not_follow,
    _decay_does_not_follow,
    _without_effect,
    _rule_without_reference,
    _timescale_of_another_decay,
)
