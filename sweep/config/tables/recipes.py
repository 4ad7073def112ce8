"""Every optimizer and every learning-rate schedule that a configuration may name."""

from dataclasses import dataclass
from typing import Annotated, Literal

from sweep.config.tables.entries import Reference, known_name

_OPTIMIZERS, _SCHEDULES = "sweep.training.recipe.optimizers", "sweep.training.recipe.schedules"


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """An optimizer, as far as it is known before it is built.

    ``groups`` is by what its parameters are grouped: by weight decay alone; ``layers``: norms and biases are marked
    ``adapt = False``; ``matrices``: the matrices of hidden layers are marked ``matrix = True``, and ``num_stacked`` is
    how many of them a parameter holds.
    """

    build: Reference  # (Groups, OptimizerSection, learning rate, AdamConstants) -> torch.optim.Optimizer
    lr_rule: Literal["linear", "sqrt"] = "sqrt"  # what rules.lr = "auto" means
    usual_lr: float | None = None  # of a training from scratch at 256 samples; None: it depends on the model too much
    momentum: float | None = None  # where optimizer.momentum is absent; None: its usual default
    beta2: float = 0.999  # where optimizer.beta2 is absent
    eps: float = 1e-8  # where optimizer.eps is absent
    groups: Literal["decay", "layers", "matrices"] = "decay"
    has_betas: bool = True  # rules.betas has an effect
    decays_by_lr: bool = True  # a step takes lr * weight_decay of the weights away; else they also depend on gradients
    averages_weights: bool = False  # is evaluated at an average of its weights, for which it measures norms anew


OPTIMIZERS: dict[str, OptimizerEntry] = {
    "sgd": OptimizerEntry(build=f"{_OPTIMIZERS}:sgd", lr_rule="linear", usual_lr=0.1, has_betas=False),
    "momentum": OptimizerEntry(build=f"{_OPTIMIZERS}:momentum", lr_rule="linear", usual_lr=0.1, has_betas=False),
    "nesterov": OptimizerEntry(build=f"{_OPTIMIZERS}:nesterov", lr_rule="linear", usual_lr=0.1, has_betas=False),
    "rmsprop": OptimizerEntry(build=f"{_OPTIMIZERS}:rmsprop", beta2=0.99, decays_by_lr=False),
    "adam": OptimizerEntry(build=f"{_OPTIMIZERS}:adam", usual_lr=1e-3, decays_by_lr=False),
    "adamw": OptimizerEntry(build=f"{_OPTIMIZERS}:adamw", usual_lr=1e-3),
    "lars": OptimizerEntry(
        build=f"{_OPTIMIZERS}:lars", lr_rule="linear", groups="layers", has_betas=False, decays_by_lr=False
    ),
    "lamb": OptimizerEntry(build=f"{_OPTIMIZERS}:lamb", eps=1e-6, groups="layers", decays_by_lr=False),
    "muon": OptimizerEntry(build=f"{_OPTIMIZERS}:muon", groups="matrices", momentum=0.95),  # as Jordan
    "schedule_free": OptimizerEntry(build=f"{_OPTIMIZERS}:schedule_free", usual_lr=1e-3, averages_weights=True),
    "schedule_free_sgd": OptimizerEntry(
        build=f"{_OPTIMIZERS}:schedule_free_sgd", lr_rule="linear", averages_weights=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class ScheduleEntry:
    """A schedule of the learning rate."""

    factor: Reference  # (share of the decay in [0, 1), final factor) -> factor of the highest rate
    has_peak: bool = False  # its warm-up lasts until schedule.peak, not schedule.warmup
    has_milestones: bool = False  # schedule.gamma at each of schedule.milestones
    is_stable_first: bool = False  # the factor's share begins with the last schedule.decay_share of the budget


SCHEDULES: dict[str, ScheduleEntry] = {
    "constant": ScheduleEntry(factor=f"{_SCHEDULES}:constant"),
    "cosine": ScheduleEntry(factor=f"{_SCHEDULES}:cosine"),
    "linear": ScheduleEntry(factor=f"{_SCHEDULES}:linear"),
    "triangular": ScheduleEntry(factor=f"{_SCHEDULES}:linear", has_peak=True),
    "wsd": ScheduleEntry(factor=f"{_SCHEDULES}:root", is_stable_first=True),
    "step": ScheduleEntry(factor=f"{_SCHEDULES}:constant", has_milestones=True),
}
OptimizerName = Annotated[str, known_name("optimizer", OPTIMIZERS)]
ScheduleName = Annotated[str, known_name("schedule", SCHEDULES)]
