"""The actors of a study: one on each slot of the cluster, on nodes of one device class; lost ones are replaced."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from sweep.executors.ray.actor import TrialActor, compute_code_version
from sweep.executors.ray.ray_cluster import Node, list_nodes
from sweep.executors.ray.ray_protocol import ActorConfig
from sweep.records.attempt_causes import ACTOR_LOST, NODE_LOST

_SETTLE_SECONDS = 20.0  # from the first actor that is ready to the choice of a device class
_MAX_FAILURES = 3  # of actors in a row that do not start on a node
_NO_SLOT = (
    "no machine of the cluster has the {needed} GPUs of a trial (0: a CPU core); see `ray status`, lower "
    "distributed.world_size, or give --device cpu."
)


@final
@dataclass(eq=False, kw_only=True)
class ActorSlot:
    """An actor and the attempt that it runs."""

    node: Node
    actor: Any
    machine: dict[str, Any] = field(default_factory=dict)  # empty until it has described itself
    key: int | None = None  # of the attempt
    number: int = 0  # of the trial

    @property
    def is_free(self) -> bool:
        """Whether it can begin an attempt."""
        return bool(self.machine) and self.key is None


class NoSlotError(RuntimeError):
    """No trial can run on the cluster as it is."""


@final
class ActorPool:
    """The actors of one study. ``device_class`` is None until one is chosen. ``warn`` shows a text to the user,
    ``receive`` is called with each slot that becomes ready, and ``await_answer`` with an answer of Ray's that is under
    way, the slot that it comes from and what to do with it."""

    def __init__(
        self,
        config: ActorConfig,
        device_class: str | None,
        warn: Callable[[str], None],
        receive: Callable[[ActorSlot], None],
        await_answer: Callable[[Any, ActorSlot, Callable[[Any], None]], None],
    ) -> None:
        self._config, self._device_class = config, device_class
        self._warn, self._receive, self._await_answer = warn, receive, await_answer
        self._slots: list[ActorSlot] = []
        self._num_excluded: Counter[str] = Counter()  # slots, by node
        self._num_failures: Counter[str] = Counter()  # by node
        self._code = compute_code_version()
        self._is_settled = False
        self.settle_at = float("inf")  # on the monotonic clock

    def fill(self) -> None:
        """Starts an actor on every slot without one.

        Raises:
            NoSlotError: there never was a slot, and there is none.
        """
        nodes = list_nodes(self._config.world_size)
        if not nodes and not self._is_settled:
            raise NoSlotError(_NO_SLOT.format(needed=self._config.world_size))
        taken = Counter(slot.node.key for slot in self._slots)
        for node in nodes:
            for _ in range(node.num_slots - taken[node.key] - self._num_excluded[node.key]):
                self._add(ActorSlot(node=node, actor=self._make_actor(node)))

    def usable(self) -> list[ActorSlot]:
        """The slots for trials, of one device class; empty until that is chosen."""
        return [slot for slot in self._slots if slot.machine] if self._is_settled else []

    def find(self, key: int) -> ActorSlot | None:
        """The slot of the attempt with that key."""
        return next((slot for slot in self._slots if slot.key == key), None)

    def settle(self) -> None:
        """Chooses one device class, the most frequent one: times on different ones cannot be compared."""
        ready = [slot for slot in self._slots if slot.machine]
        is_time = len(ready) == len(self._slots) or time.monotonic() >= self.settle_at
        if not ready or not (is_time or self._device_class):
            return
        if self._device_class is None:
            self._device_class = Counter(str(slot.machine["device"]) for slot in ready).most_common(1)[0][0]
        self.settle_at, self._is_settled = float("inf"), True
        for slot in ready:
            if slot.machine["device"] != self._device_class:
                self._exclude(slot.node, 1, f"{slot.machine['device']}, and the study is on {self._device_class}")
                self._remove(slot)

    def lose(self, slot: ActorSlot, error: Exception) -> str | None:
        """Removes an actor that failed to answer; returns the cause of its attempt's end, None if removed before.

        Raises:
            NoSlotError: actors start on no node.
        """
        if slot not in self._slots:
            return None
        self._remove(slot)
        if not slot.machine:
            self._count_failure(slot.node, error)
        return self._find_cause(slot, error)

    def close(self) -> None:
        """Ends all actors."""
        import ray

        for slot in list(self._slots):
            self._remove(slot)
        ray.shutdown()

    def _make_actor(self, node: Node) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        make: Any = ray.remote
        num_gpus = self._config.world_size
        actor_class = make(
            concurrency_groups={"messages": 1},
            num_gpus=num_gpus,
            num_cpus=0 if num_gpus else 1,
            max_restarts=0,  # the study decides what is retried
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False),
        )(TrialActor)
        return actor_class.remote(self._config, node.threads)

    def _add(self, slot: ActorSlot) -> None:
        self._slots.append(slot)
        self._await_answer(slot.actor.describe.remote(), slot, lambda described: self._accept(slot, described))

    def _accept(self, slot: ActorSlot, described: dict[str, Any]) -> None:
        if described["code"] != self._code:
            self._exclude(slot.node, 1, f"its version of this program is {described['code']} and not {self._code}")
            self._remove(slot)
            return
        slot.machine = described["machine"]
        self._num_failures[slot.node.key] = 0
        self.settle_at = min(self.settle_at, time.monotonic() + _SETTLE_SECONDS)
        self._receive(slot)

    def _exclude(self, node: Node, count: int, reason: str) -> None:
        if not self._num_excluded[node.key]:
            self._warn(f"machine {node.key[:8]} of the cluster is not fully used: {reason}")
        self._num_excluded[node.key] += count

    def _remove(self, slot: ActorSlot) -> None:
        import ray

        self._slots.remove(slot)
        ray.kill(slot.actor)

    def _find_cause(self, slot: ActorSlot, error: Exception) -> str:
        from ray.exceptions import RayTaskError

        if isinstance(error, RayTaskError):
            return ""  # the actor lives, and could not carry out the call
        present = {node.key for node in list_nodes(self._config.world_size)}
        return ACTOR_LOST if slot.node.key in present else NODE_LOST

    def _count_failure(self, node: Node, error: Exception) -> None:
        self._num_failures[node.key] += 1
        if self._num_failures[node.key] < _MAX_FAILURES:
            return
        if not self._is_settled and not self._slots:
            raise NoSlotError(f"no trial can run on the cluster: {shorten_error(error)}")
        self._exclude(node, node.num_slots, shorten_error(error))


def shorten_error(error: Exception) -> str:
    """The last lines of one of Ray's errors, without its markers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    return "\n".join(lines[-8:])[:2000]
