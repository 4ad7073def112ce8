"""What the page requires to name configurations within limits that its reader chooses, as ``sweep recommend`` does:
the candidates, their draws, and the rules.

The draws are rounded by :func:`sweep.analysis.candidates.select_candidates` to what fits here, so that both
count the same probabilities.
"""

import math
from typing import Any

import numpy as np

from reports.labels import format_estimate, format_setting, key_label, metric_label
from reports.page.answer_texts import USE_TITLES
from sweep.analysis.candidates import (
    ACCURACY_MARGIN,
    ACCURACY_STEPS,
    BATCH_SIZE,
    COMPROMISE_TOLERANCE,
    USE_TABLE,
    Candidates,
    Use,
    config_of,
    estimate_value,
    select_shown,
)
from sweep.analysis.comparable import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics import Numbers, Values

Json = dict[str, Any]
_COSTS = (SECONDS, MEMORY)
_HEADLINE = "Batch size"


def describe_limits(candidates: Candidates | None) -> tuple[Json, bytes] | None:
    """The candidates and the rules as JSON, and the draws: of each candidate 16-bit accuracies in steps of
    1 / ``steps``, then of each group of equal seconds and of equal memory 32-bit floats, all little-endian. None where
    fewer than two configurations can be compared."""
    if candidates is None or len(candidates.rows) < 2:
        return None
    names = [ACCURACY, *(name for name in _COSTS if name in candidates.names)]
    codes = np.rint(candidates.values(ACCURACY, candidates.draws).T * ACCURACY_STEPS).astype("<u2")
    parts, groups = [codes.tobytes()], {}
    for name in names[1:]:
        different, which = _find_groups(candidates.values(name, candidates.draws))
        parts.append(different.T.astype("<f4").tobytes())
        groups[name] = which.tolist()
    found = {
        "command": candidates.records.commands.recommend(),
        "steps": ACCURACY_STEPS,
        "draws": len(candidates.draws),
        "metrics": names,
        "groups": groups,
        "rules": _describe_rules(candidates),
        "uses": [
            _describe_use(candidates, name, title, use)
            for name, title, use in _list_uses()
            if use.takes_part(candidates).any()
        ],
        "nameable": candidates.nameable.tolist(),
        "front": candidates.p_front.tolist(),
        "estimates": {name: _known(candidates.values(name)) for name in names},
        "shown": _describe_candidates(candidates, names),
    }
    return found, b"".join(parts)


def list_limit_names(candidates: Candidates | None) -> list[tuple[str, str]]:
    """The metrics that can be limited, each with its label; empty where nothing can be compared."""
    if candidates is None or len(candidates.rows) < 2:
        return []
    return [(name, metric_label(name)) for name in (ACCURACY, *_COSTS) if name in candidates.names]


def _list_uses() -> list[tuple[str, str, Use]]:
    return [("batch_size", _HEADLINE, BATCH_SIZE), *((name, USE_TITLES[name], use) for name, use in USE_TABLE.items())]


def _describe_use(candidates: Candidates, name: str, title: str, use: Use) -> Json:
    # ``metric`` null is a compromise, ``margin`` null that accuracy itself is optimized
    margin = use.find_margin(candidates.rules.tolerance) if use.find_margin else None
    part = use.takes_part(candidates).tolist()
    return {"name": name, "title": title, "metric": use.metric, "margin": margin, "part": part}


def _describe_rules(candidates: Candidates) -> Json:
    tolerance = candidates.rules.tolerance
    return {
        "accuracy": tolerance.accuracy,
        SECONDS: tolerance.time,
        MEMORY: tolerance.memory,
        "confidence": candidates.rules.confidence,
        "margin": ACCURACY_MARGIN,
        "compromise": COMPROMISE_TOLERANCE,
    }


def _describe_candidates(candidates: Candidates, names: list[str]) -> list[Json]:
    # of those that may be named; their settings are those that differ between them
    places = np.flatnonzero(candidates.nameable).tolist()
    frame = candidates.records.frame.iloc[candidates.rows[places]]
    configs = [config_of(row) for _, row in frame.iterrows()]
    keys = dict.fromkeys(key for config in configs for key in select_shown(candidates, config))
    varied = [key for key in keys if key != "batch.global" and len({str(config[key]) for config in configs}) > 1]
    return [
        {
            "place": place,
            "number": candidates.number(place),
            "batch": int(batch),
            "settings": ", ".join(f"{key_label(key)} {format_setting(config[key])}" for key in varied),
            "cells": [format_estimate(name, *estimate_value(candidates, place, name)) for name in names],
        }
        for place, config, batch in zip(places, configs, frame["global_batch_size"], strict=True)
    ]


def _find_groups(draws: Values) -> tuple[Values, Numbers]:
    # the different columns of ``draws``, shape [draws, k], and which of them each candidate has; NaN equals NaN
    different, which = np.unique(draws.T, axis=0, return_inverse=True, equal_nan=True)
    return different.T, which.reshape(-1)


def _known(values: Values) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
