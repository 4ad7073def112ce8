"""The process that uses Ray for the supervisor: it gives attempts to the actors and returns their messages.

See :mod:`sweep.executors.ray.ray_protocol` for the requests and answers.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, final

from sweep.executors.ray import ray_protocol as protocol
from sweep.executors.ray.actor_pool import ActorPool, ActorSlot, NoSlotError, shorten_error
from sweep.executors.ray.ray_cluster import call_on_loss, join_cluster, list_nodes, start_cluster
from sweep.records.attempt_causes import NODE_LOST
from sweep.records.messages import Ending, Heartbeat, decode_message, encode_message

_FILL_SECONDS = 5.0  # between two looks for nodes that have come or gone
_SLOT_SECONDS = 300.0  # how long an attempt waits for a slot
_CLOSE_SECONDS = 5.0  # to end what is on other machines; else that ends by itself, later
_NO_CLUSTER = (
    "--address {}: {}\nThis machine must be part of the cluster; a cluster with a token also requires "
    "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here."
)
_QUEUED = encode_message(Heartbeat(is_queued=True)).decode()


def run_driver(control_fd: int, folder: Path) -> NoReturn:
    """The whole life of the driver; ends with the process when the supervisor goes or the cluster is lost.

    ``folder`` is for the files of a cluster that is started here.
    """
    control = socket.socket(fileno=control_fd)
    lines = control.makefile("rb")
    terms = protocol.REQUESTS.decode(lines.readline())
    assert isinstance(terms, protocol.ClusterTerms)
    driver = _Driver(control)
    threading.Thread(target=_read_requests, args=(lines, driver, terms.address is None), daemon=True).start()
    try:
        _connect(terms, folder)
    except Exception as error:
        reason = shorten_error(error)
        is_own = terms.address is None
        driver.refuse(f"no cluster could be started: {reason}" if is_own else _NO_CLUSTER.format(terms.address, reason))
    uses_gpus = bool(list_nodes(1)) if terms.uses_gpus is None else terms.uses_gpus
    driver.run(terms.actor if uses_gpus else replace(terms.actor, world_size=0), terms.device_class)


def _read_requests(lines: BinaryIO, driver: "_Driver", is_own_cluster: bool) -> None:
    for line in lines:
        driver.events.put(partial(driver.execute, protocol.REQUESTS.decode(line)))
    # the supervisor has closed its end
    if not is_own_cluster:
        driver.events.put(driver.close)
        time.sleep(_CLOSE_SECONDS)
    os._exit(0)


def _connect(terms: protocol.ClusterTerms, folder: Path) -> None:
    if terms.address is not None:
        join_cluster(terms.address)
        return
    start_cluster(folder, terms.num_cpus, terms.num_gpus)
    call_on_loss(lambda: os._exit(1))


@final
class _Driver:
    """Everything but reading happens in one thread, event by event."""

    def __init__(self, control: socket.socket) -> None:
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._control = control
        self._pool: ActorPool
        self._waiting: dict[protocol.StartAttempt, float] = {}  # without a slot, and when to give each up
        self._usable: list[ActorSlot] = []  # as last reported

    def run(self, config: protocol.ActorConfig, device_class: str | None) -> NoReturn:
        """Until the process ends."""
        self._pool = ActorPool(config, device_class, self._warn, self._receive, self._await_answer)
        fill_at = 0.0
        try:
            while True:
                if time.monotonic() >= fill_at:
                    fill_at = time.monotonic() + _FILL_SECONDS
                    self._pool.fill()
                    self._report_waiting()
                wait_seconds = min(fill_at, self._pool.settle_at) - time.monotonic()
                with suppress(queue.Empty):
                    self.events.get(timeout=max(0.0, wait_seconds))()
                self._start_waiting()
        except NoSlotError as error:
            self.refuse(str(error))

    def execute(self, request: protocol.Request) -> None:
        """Carries out a request of the supervisor."""
        if isinstance(request, protocol.StartAttempt):
            self._waiting[request] = time.monotonic() + _SLOT_SECONDS
        elif isinstance(request, protocol.PreemptAttempt):
            if slot := self._pool.find(request.key):
                slot.actor.preempt.remote(slot.number)
        elif isinstance(request, protocol.StopAttempt):
            self._stop(request.key)

    def close(self) -> NoReturn:
        """Ends the process, after what it has on other machines."""
        self._pool.close()
        os._exit(0)

    def refuse(self, error: str) -> NoReturn:
        """Ends the process with a reason that the user can change."""
        self._answer(protocol.ClusterRefused(f"--executor ray: {error}"))
        os._exit(0)

    def _report_slots(self) -> None:
        self._pool.settle()
        usable = self._pool.usable()
        if usable and usable != self._usable:
            self._answer(protocol.SlotsChanged(len(usable), usable[0].machine))
        self._usable = usable

    def _start_waiting(self) -> None:
        """Starts the attempts for which there are free slots."""
        self._report_slots()
        free = [slot for slot in self._usable if slot.is_free]
        for slot, attempt in zip(free, list(self._waiting), strict=False):
            del self._waiting[attempt]
            slot.key, slot.number = attempt.key, attempt.number
            self._await_answer(slot.actor.start.remote(attempt.key, attempt.task), slot, lambda _: None)

    def _receive(self, slot: ActorSlot) -> None:
        messages = slot.actor.take_messages.options(concurrency_group="messages").remote()
        self._await_answer(messages, slot, partial(self._forward, slot))

    def _forward(self, slot: ActorSlot, received: list[tuple[int, str]]) -> None:
        # messages of an attempt that was stopped meanwhile are dropped
        if slot.key is not None and (messages := tuple(text for key, text in received if key == slot.key)):
            self._answer(protocol.AttemptMessages(slot.key, messages))
            if isinstance(decode_message(messages[-1].encode()), Ending):
                slot.key = None
        self._receive(slot)

    def _stop(self, key: int) -> None:
        slot = self._pool.find(key)
        if slot is not None:
            self._await_answer(slot.actor.stop.remote(slot.number), slot, lambda _: self._report_stopped(slot, key))
            return
        self._waiting = {attempt: give_up_at for attempt, give_up_at in self._waiting.items() if attempt.key != key}
        self._answer(protocol.AttemptStopped(key))

    def _report_stopped(self, slot: ActorSlot, key: int) -> None:
        if slot.key == key:
            slot.key = None
        self._answer(protocol.AttemptStopped(key))

    def _report_waiting(self) -> None:
        """Reports of each waiting attempt that it still waits, or that there will be no slot for it."""
        now = time.monotonic()
        for attempt, give_up_at in list(self._waiting.items()):
            if give_up_at > now:
                self._answer(protocol.AttemptMessages(attempt.key, (_QUEUED,)))
                continue
            del self._waiting[attempt]
            self._end_lost(attempt.key, NODE_LOST, f"the cluster had no slot for it within {_SLOT_SECONDS:g} s")

    def _await_answer(self, reference: Any, slot: ActorSlot, then: Callable[[Any], None]) -> None:
        """Calls ``then`` with the answer, as an event; without one the actor is lost."""

        def add_event(future: Any) -> None:
            error = future.exception()
            self.events.put(partial(self._lose, slot, error) if error else partial(then, future.result()))

        reference.future().add_done_callback(add_event)

    def _lose(self, slot: ActorSlot, error: Exception) -> None:
        """An actor does not answer any more; its attempt, if it had one, has ended with it."""
        cause = self._pool.lose(slot, error)
        if cause is None:
            return
        self._report_slots()  # first, because the supervisor may start another at once
        if slot.key is not None:
            self._end_lost(slot.key, cause, shorten_error(error))
        self._pool.fill()

    def _end_lost(self, key: int, cause: str, error: str) -> None:
        ending = Ending(outcome="crashed", error=error, cause=cause)
        self._answer(protocol.AttemptMessages(key, (encode_message(ending).decode(),)))

    def _warn(self, text: str) -> None:
        self._answer(protocol.Notice(text))

    def _answer(self, answer: protocol.Answer) -> None:
        self._control.sendall(protocol.ANSWERS.encode(answer) + b"\n")
