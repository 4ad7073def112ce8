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
_USUAL_PROBING_SECONDS = 4.0  # that a short study may take for it too
_TIMED_SECONDS = 0.3

Find = Callable[[TrialConfig], ProbeRecord | None]
Probe = Callable[[TrialConfig, float], ProbeRecord]


def probe_sample(
    sample: Sequence[TrialConfig], work: RemainingWork, cost_model: CostModel, find: Find, probe: Probe
) -> int:
    """Adds the known probes of the sample's shapes to ``cost_model``, then probes others as long as that costs less
    than a share of the forecast time, or a few seconds. Returns the number of probes made."""
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
    allowed = max(_PROBING_SHARE * total, _USUAL_PROBING_SECONDS)
    return min(allowed, _PROBING_SHARE * work.limit_seconds, _MAX_PROBING_SECONDS)


def select_shapes(sample: Sequence[TrialConfig]) -> list[TrialConfig]:
    """One configuration per shape, in the order in which they should be probed.

    First the smallest micro batch of a group of shapes of each model, then the largest of it, because models differ
    most. Then the smallest of every other group, the largest, and those between, middle first; groups with more
    configurations in the sample come first.
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
    leaders = {group.of("model.name"): (group, sizes) for group, sizes in reversed(ordered)}
    first = [(turn, entry) for turn in (0, 1) for entry in ordered if entry in leaders.values()]
    turns = range(max((len(sizes) for _, sizes in ordered), default=0))
    queue = [*first, *((turn, entry) for turn in turns for entry in ordered)]
    chosen = [(group, sizes[turn]) for turn, (group, sizes) in queue if turn < len(sizes)]
    return [groups[group][size] for group, size in dict.fromkeys(chosen)]


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
