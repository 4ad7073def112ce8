"""Which actors there are: one on each place of the cluster, on machines of one class of devices, new ones for lost."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from sweep.executors.ray.actor import Post, TrialActor, code_version
from sweep.executors.ray.ray_cluster import Node, nodes
from sweep.records.attempt_causes import ACTOR_LOST, NODE_LOST

_SETTLE_SECONDS = 20.0  # from the first actor that is ready to the choice of a class of devices
_MAX_FAILURES = 3  # of actors in a row that do not come to life on a machine
_NO_PLACE = (
    "no machine of the cluster has the {needed} GPUs of a trial (0: a CPU core); see `ray status`, lower "
    "distributed.world_size, or give --device cpu."
)


@final
@dataclass(eq=False)
class Place:
    """An actor, and the key of the attempt that it is at."""

    node: Node
    actor: Any
    machine: dict[str, Any] = field(default_factory=dict)  # empty until it has described itself
    key: int | None = None
    number: int = 0  # of the trial

    @property
    def is_free(self) -> bool:
        """Whether it can begin an attempt."""
        return bool(self.machine) and self.key is None


class NoPlaceError(RuntimeError):
    """No trial can run on the cluster as it is."""


@final
class Places:
    """Those of one study. ``device_class`` is None until one is chosen. ``notice`` gets what the user should know,
    ``listen`` each place that is ready; ``when`` is given an answer that is under way, the place that it comes from and
    what to do with it.
    """

    def __init__(
        self,
        post: Post,
        device_class: str | None,
        notice: Callable[[str], None],
        listen: Callable[[Place], None],
        when: Callable[[Any, Place, Callable[[Any], None]], None],
    ) -> None:
        self._post, self._device_class = post, device_class
        self._notice, self._listen, self._when = notice, listen, when
        self._all: list[Place] = []
        self._left_out: Counter[str] = Counter()  # places, by machine
        self._failures: Counter[str] = Counter()  # by machine
        self._code = code_version()
        self._is_settled = False
        self.settle_at = float("inf")  # on the monotonic clock

    def look(self) -> None:
        """Puts an actor wherever there is a place without one.

        Raises:
            NoPlaceError: there never was a place, and there is none.
        """
        present = nodes(self._post.world_size)
        if not present and not self._is_settled:
            raise NoPlaceError(_NO_PLACE.format(needed=self._post.world_size))
        taken = Counter(place.node.key for place in self._all)
        for node in present:
            for _ in range(node.num_places - taken[node.key] - self._left_out[node.key]):
                self._meet(Place(node, self._make_actor(node)))

    def usable(self) -> list[Place]:
        """Where trials can be, of one device class; empty as long as that is not chosen."""
        return [place for place in self._all if place.machine] if self._is_settled else []

    def at(self, key: int) -> Place | None:
        """Where the attempt with that key is."""
        return next((place for place in self._all if place.key == key), None)

    def settle(self) -> None:
        """Chooses one class of devices, that of most places: times on different ones cannot be compared."""
        ready = [place for place in self._all if place.machine]
        is_time = len(ready) == len(self._all) or time.monotonic() >= self.settle_at
        if not ready or not (is_time or self._device_class):
            return
        if self._device_class is None:
            self._device_class = Counter(str(place.machine["device"]) for place in ready).most_common(1)[0][0]
        self.settle_at, self._is_settled = float("inf"), True
        for place in ready:
            if place.machine["device"] != self._device_class:
                self._leave_out(place.node, 1, f"{place.machine['device']}, and the study is on {self._device_class}")
                self._remove(place)

    def lose(self, place: Place, error: Exception) -> str | None:
        """Drops an actor that does not answer; returns the cause of its attempt's end, None where it is gone already.

        Raises:
            NoPlaceError: nowhere do actors come to life.
        """
        if place not in self._all:
            return None
        self._remove(place)
        if not place.machine:
            self._count_failure(place.node, error)
        return self._cause(place, error)

    def close(self) -> None:
        """Ends all actors."""
        import ray

        for place in list(self._all):
            self._remove(place)
        ray.shutdown()

    def _make_actor(self, node: Node) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        make: Any = ray.remote
        gpus = self._post.world_size
        actor_class = make(
            concurrency_groups={"news": 1},
            num_gpus=gpus,
            num_cpus=0 if gpus else 1,
            max_restarts=0,  # the study decides what is tried again
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False),
        )(TrialActor)
        return actor_class.remote(self._post, node.threads)

    def _meet(self, place: Place) -> None:
        self._all.append(place)
        self._when(place.actor.describe.remote(), place, lambda told: self._welcome(place, told))

    def _welcome(self, place: Place, told: dict[str, Any]) -> None:
        """An actor has said what it stands on."""
        if told["code"] != self._code:
            self._leave_out(place.node, 1, f"its version of this program is {told['code']} and not {self._code}")
            self._remove(place)
            return
        place.machine = told["machine"]
        self._failures[place.node.key] = 0
        self.settle_at = min(self.settle_at, time.monotonic() + _SETTLE_SECONDS)
        self._listen(place)

    def _leave_out(self, node: Node, count: int, why: str) -> None:
        if not self._left_out[node.key]:
            self._notice(f"of machine {node.key[:8]} of the cluster not all is used: {why}")
        self._left_out[node.key] += count

    def _remove(self, place: Place) -> None:
        import ray

        self._all.remove(place)
        ray.kill(place.actor)

    def _cause(self, place: Place, error: Exception) -> str:
        from ray.exceptions import RayTaskError

        if isinstance(error, RayTaskError):
            return ""  # it lives, and could not do what it was asked
        present = {node.key for node in nodes(self._post.world_size)}
        return ACTOR_LOST if place.node.key in present else NODE_LOST

    def _count_failure(self, node: Node, error: Exception) -> None:
        self._failures[node.key] += 1
        if self._failures[node.key] < _MAX_FAILURES:
            return
        if not self._is_settled and not self._all:
            raise NoPlaceError(f"no trial can run on the cluster: {brief(error)}")
        self._leave_out(node, node.num_places, brief(error))


def brief(error: Exception) -> str:
    """The lines of one of Ray's errors that say something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    return "\n".join(lines[-8:])[:2000]
