"""Which trial has the shape of which probe: the settings that the time and memory of a step depend on.

A probe's shape is JSON, a fact by configuration key. Most facts are the setting itself; of some keys only whether they
are on, and of the micro batches in a step only whether there are several.
"""

import json
from typing import Any

import numpy as np
import pandas as pd

from sweep.analysis.statistics import Mask, Numbers, Values, plain_value, read_numbers, read_text
from sweep.analysis.statistics.time_evidence import has_time_evidence
from sweep.config.trial_config import Scalar

_MICRO, _ACCUMULATION = "batch.micro", "batch.accumulation"
_MOST_PROBED = 2  # micro batches in a probe's step
# What these keys amount to in one step is computed from the records.
_OF_A_STEP = frozenset({_MICRO, _ACCUMULATION, "batch.schedule"})
# With these facts the setting has no effect in this shape, whatever it is.
_WITHOUT_EFFECT = {"model.ghost_batch": 0, "data.augment_ops": 0, "data.root": ""}


def parse_shapes(probes: pd.DataFrame) -> list[dict[str, Any]]:
    """The facts of each probe's shape."""
    return [json.loads(shape or "{}") for shape in read_text(probes, "shape")]


def ran_micro_batches(trials: pd.DataFrame) -> Values:
    """Samples of the micro batch that ran: as measured, otherwise as configured; NaN where neither is known."""
    ran = read_numbers(trials, "micro_batch_size")
    return np.where(np.isfinite(ran), ran, read_numbers(trials, f"config.{_MICRO}"))


def num_accumulation(trials: pd.DataFrame, micro: Values | None = None) -> Values:
    """Micro batches per optimizer step on each rank, with micro batches of ``micro`` samples, by default those that
    ran; both of shape ``[trials]``."""
    ranks = np.nan_to_num(read_numbers(trials, "config.distributed.world_size"), nan=1.0)
    samples = (ran_micro_batches(trials) if micro is None else micro) * np.maximum(ranks, 1.0)
    return np.ceil(read_numbers(trials, "global_batch_size") / samples)


def match_probes(trials: pd.DataFrame, probes: pd.DataFrame) -> Numbers:
    """For each trial the row of the probe of its shape on its device, -1 where there is none; shape ``[trials]``. A
    trial whose effective batch size grew during training has no single shape."""
    found = np.full(len(trials), -1, dtype=np.int64)
    grew = ~np.isin(read_text(trials, "config.batch.schedule"), ["", "constant"])
    micro = ran_micro_batches(trials)
    several = np.where(grew, np.nan, np.minimum(num_accumulation(trials), _MOST_PROBED))
    devices, probed_on = read_text(trials, "device"), read_text(probes, "device")
    settings: dict[str, _Setting] = {}
    for row, facts in enumerate(parse_shapes(probes)):
        same = (micro == facts.get(_MICRO)) & (several == facts.get(_ACCUMULATION)) & (devices == probed_on[row])
        for key, fact in facts.items():
            if not same.any():
                break
            if key not in _OF_A_STEP:
                same &= _has(settings.setdefault(key, _setting(trials, key)), key, fact)
        found[same] = row
    return found


def probed_step_seconds(trials: pd.DataFrame, probes: pd.DataFrame) -> Values:
    """The median step time of the probe of each trial's shape; NaN where there is no complete one whose time is
    evidence, and where a step of the trial has more micro batches than the probe's. Shape ``[trials]``."""
    good = probes[np.asarray(read_text(probes, "outcome") == "complete", dtype=np.bool_) & has_time_evidence(probes)]
    rows = match_probes(trials, good)
    known = (rows >= 0) & (num_accumulation(trials) <= _MOST_PROBED)
    found = np.full(len(trials), np.nan)
    found[known] = read_numbers(good, "step_seconds_median")[rows[known]]
    return found


_Setting = tuple[Numbers, list[Scalar]]  # which of the distinct values each trial has


def _setting(trials: pd.DataFrame, key: str) -> _Setting:
    if f"config.{key}" not in trials.columns:
        return np.zeros(len(trials), dtype=np.int64), [None]
    codes, values = pd.factorize(trials[f"config.{key}"], use_na_sentinel=False)
    return codes, [plain_value(value) for value in values]


def _has(setting: _Setting, key: str, fact: object) -> Mask:
    codes, values = setting
    if key in _WITHOUT_EFFECT and fact == _WITHOUT_EFFECT[key]:
        return np.ones(len(codes), dtype=np.bool_)
    agrees = [bool(value) == fact if isinstance(fact, bool) else value == fact for value in values]
    return np.array(agrees, dtype=np.bool_)[codes]
