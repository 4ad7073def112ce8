"""One piece of advice, and what decides whether it applies."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig


class Advice(NamedTuple):
    """One pitfall: ``key`` to change, ``statement`` what is the case, ``reason`` why that matters, ``remedy`` what to
    write instead; ``finding`` the name of the claim in the findings that measures it, "" where there is none."""

    name: str
    key: str
    statement: str
    reason: str
    remedy: str
    finding: str = ""


# From the study and the corners of its space to what applies.
Pitfall = Callable[[StudySpec, Sequence[TrialConfig]], Iterator[Advice]]

_WIDE = 4


def is_swept(spec: StudySpec, *keys: str) -> bool:
    return any(key in spec.space for key in keys)


def list_sizes(corners: Sequence[TrialConfig]) -> list[int]:
    """The effective batch sizes, ascending."""
    return sorted({config.global_batch_size for config in corners})


def vary_widely(sizes: Sequence[int]) -> bool:
    """Whether the largest of these effective batch sizes, which are ascending, is at least 4 times the smallest."""
    return len(sizes) > 0 and sizes[-1] >= _WIDE * sizes[0]
