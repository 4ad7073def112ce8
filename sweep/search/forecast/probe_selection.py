"""Which shapes are probed before a study, and how many."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import Shape, derive_shape
from sweep.records.probe_record import ProbeRecord
from sweep.search.forecast.remaining_work import RemainingWork
from sweep.search.forecast.trial_cost import CostModel

_MAX_PROBES = 16
_PROBING_SHARE = 0.08  # of the forecast time of the study
_MAX_PROBING_SECONDS = 60.0  # before a study starts
_TIMED_SECONDS = 0.3

Find = Callable[[TrialConfig], ProbeRecord | None]
Probe = Callable[[TrialConfig, float], ProbeRecord]


def probe_sample(
    sample: Sequence[TrialConfig], work: RemainingWork, cost_model: CostModel, find: Find, probe: Probe
) -> int:
    """Adds the known probes of the sample's shapes to ``cost_model``, then probes others as long as that costs less
    than a tenth of the forecast time. Returns the number of probes made."""
    queue = select_shapes(sample)
    for config in queue:
        if found := find(config):
            cost_model.add(found)
    num_probes, began = 0, time.monotonic()
    for config in queue:
        if find(config) or num_probes >= _MAX_PROBES:
            continue
        probe_seconds = cost_model.predict_probe_seconds(config, _TIMED_SECONDS) or 0.0
        if num_probes and time.monotonic() - began + probe_seconds > _allowed_seconds(sample, work, cost_model):
            continue  # a smaller micro batch later in the queue may be cheap enough
        cost_model.add(probe(config, _TIMED_SECONDS))
        num_probes += 1
    return num_probes


def _allowed_seconds(sample: Sequence[TrialConfig], work: RemainingWork, cost_model: CostModel) -> float:
    known = [seconds for config in sample if (seconds := cost_model.predict_seconds(config)) is not None]
    if not known:
        return 0.0
    total = float(np.mean(known)) * (work.num_trials + work.num_confirm) / work.slots
    return min(_PROBING_SHARE * min(total, work.limit_seconds), _MAX_PROBING_SECONDS)


def select_shapes(sample: Sequence[TrialConfig]) -> list[TrialConfig]:
    """One configuration per shape, in the order in which they should be probed.

    First the smallest micro batch of each group of shapes, then the largest of each, then those between, middle first;
    groups with more configurations in the sample come first.
    """
    groups: dict[Shape, dict[int, TrialConfig]] = {}
    weights: Counter[Shape] = Counter()
    for config in sample:
        if config.distributed.world_size > 1:
            continue  # a probe is of one rank
        group = derive_shape(config).group
        groups.setdefault(group, {}).setdefault(config.micro_batch, config)
        weights[group] += 1
    ordered = [(group, _spread_out(sorted(groups[group]))) for group, _ in weights.most_common()]
    turns = range(max((len(sizes) for _, sizes in ordered), default=0))
    return [groups[group][sizes[turn]] for turn in turns for group, sizes in ordered if turn < len(sizes)]


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
