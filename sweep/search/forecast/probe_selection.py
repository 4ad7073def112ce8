"""Which shapes are probed before a study, and when that is enough."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import Shape, micro_batch, shape_of
from sweep.records.probe_records import ProbeRecord
from sweep.search.forecast.remaining_work import RemainingWork
from sweep.search.forecast.trial_cost import CostModel

MAX_PROBES = 16
_PROBE_SHARE = 0.08  # of the time that the study is expected to take may be spent on probing it
_MAX_PROBING_SECONDS = 60.0  # nobody wants to wait longer for the start of a study
_TIMED_SECONDS = 0.3

Find = Callable[[TrialConfig], ProbeRecord | None]
Probe = Callable[[TrialConfig, float], ProbeRecord]


def probe_some(
    sample: Sequence[TrialConfig], outlook: RemainingWork, costs: CostModel, find: Find, probe: Probe
) -> int:
    """Fills ``costs`` from what is known, then by probing while that costs less than a tenth of what is forecast."""
    queue = one_a_shape(sample)
    for config in queue:
        if found := find(config):
            costs.add(found)
    num_probes, began = 0, time.monotonic()
    for config in queue:
        if find(config) or num_probes >= MAX_PROBES:
            continue
        wanted = time.monotonic() - began + (costs.predict_probe_seconds(config, _TIMED_SECONDS) or 0.0)
        if num_probes and wanted > _allowed_seconds(sample, outlook, costs):
            continue  # a smaller micro batch that comes later may be cheap enough
        costs.add(probe(config, _TIMED_SECONDS))
        num_probes += 1
    return num_probes


def _allowed_seconds(sample: Sequence[TrialConfig], outlook: RemainingWork, costs: CostModel) -> float:
    known = [seconds for config in sample if (seconds := costs.predict_seconds(config)) is not None]
    if not known:
        return 0.0
    total = float(np.mean(known)) * (outlook.num_trials + outlook.num_confirm) / outlook.slots
    return min(_PROBE_SHARE * min(total, outlook.limit_seconds), _MAX_PROBING_SECONDS)


def one_a_shape(sample: Sequence[TrialConfig]) -> list[TrialConfig]:
    """One configuration a shape, the most telling first: of each group the smallest micro batch, then of each the
    largest, then those between, middle first. Groups that are asked for more often come first."""
    groups: dict[Shape, dict[int, TrialConfig]] = {}
    weights: dict[Shape, int] = {}
    for config in sample:
        if config.distributed.world_size > 1:
            continue  # a probe is of one rank
        group = shape_of(config).group
        groups.setdefault(group, {}).setdefault(micro_batch(config), config)
        weights[group] = weights.get(group, 0) + 1
    ordered = sorted(groups, key=lambda group: -weights[group])
    rounds = [_spread_out(sorted(groups[group])) for group in ordered]
    turns = range(max(map(len, rounds), default=0))
    return [
        groups[group][sizes[turn]]
        for turn in turns
        for group, sizes in zip(ordered, rounds, strict=True)
        if turn < len(sizes)
    ]


def _spread_out(sizes: list[int]) -> list[int]:
    """The first, the last, then the middle of each gap, and so on."""
    order = list(dict.fromkeys((0, len(sizes) - 1)))
    gaps = deque([(0, len(sizes) - 1)])
    while gaps:
        left, right = gaps.popleft()
        middle = (left + right) // 2
        if middle > left:
            order.append(middle)
            gaps += [(left, middle), (middle, right)]
    return [sizes[index] for index in order]
