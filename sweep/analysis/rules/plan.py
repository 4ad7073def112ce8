"""The study that trains every combination of rules away from the reference batch."""

import json
import math
from collections.abc import Mapping, Sequence

from sweep.analysis.rules.combinations import BETAS_RULES, LR_POWERS, WEIGHT_DECAY_RULES, start_from
from sweep.analysis.rules.starts import Start
from sweep.config.errors import InputError
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import Scalar, TrialConfig, default_settings, flatten_config


def write_plan(name: str, start: Start, num_seeds: int) -> str:
    """The TOML text of the study called ``name``: from the recipe of ``start``, all combinations of rules at every
    other batch on record, with ``num_seeds`` seeds.

    Raises:
        InputError: there is no other batch.
    """
    setting, reference = start.setting, start.reference
    base = start_from(setting.config, start.recipe, reference)
    batches = sorted(setting.accuracies.keys() - {reference})
    if not batches:
        raise InputError(
            f"sweep rules --plan: all trainings of {setting.name} have the reference batch {reference:,}; run its "
            "study with another effective batch size first."
        )
    space = _list_space(base, batches, num_seeds)
    rules: dict[str, Scalar] = {"rules.reference_batch": reference}
    lines = [
        f"name = {json.dumps(name)}",
        'question = "Which rules keep a recipe good at another batch size, without tuning it again?"',
        f"trials = {math.prod(map(len, space.values()))}",
        'sampler = "grid"',
        "confirm = { max_configurations = 0, seeds = 0 }",
        "",
        "[base]",
        f"# the best recipe on record at an effective batch size of {reference}; every rule leaves it there as it is",
        *(f"{key} = {json.dumps(value)}" for key, value in sorted((_list_fixed(base, space) | rules).items())),
        "",
        "[space]",
        "# one micro batch a step on each rank; for what does not fit give batch.global here, batch.micro in [base]",
        *(f"{json.dumps(key)} = {{ choice = {json.dumps(values)} }}" for key, values in space.items()),
    ]
    return "\n".join(lines) + "\n"


def _list_fixed(base: TrialConfig, space: Mapping[str, Sequence[Scalar]]) -> dict[str, Scalar]:
    given = {key: value for key, value in flatten_config(base).items() if value != default_settings()[key]}
    return {
        key: value
        for key, value in given.items()
        if value is not None and key not in space and not key.startswith("batch.")
    }


def _list_space(base: TrialConfig, batches: Sequence[int], num_seeds: int) -> dict[str, list[Scalar]]:
    micro = [max(batch // base.distributed.world_size, 1) for batch in batches]
    space: dict[str, list[Scalar]] = {"batch.micro": list(micro), "rules.lr": list(LR_POWERS)}
    if base.optimizer.weight_decay:
        space["rules.weight_decay"] = list(WEIGHT_DECAY_RULES)
    if OPTIMIZERS[base.optimizer.name].has_betas:
        space["rules.betas"] = list(BETAS_RULES)
    return space | {"seed": list(range(num_seeds))}
