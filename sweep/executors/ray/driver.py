"""The process that speaks with Ray for the supervisor: it hands attempts to the actors and their messages back.

The supervisor writes one JSON document a line: first the terms, then ``{"start": key, "number": ..., "task": ...}``,
``{"leave": key}``, ``{"stop": key}``. Answers: ``{"slots": count, "machine": ...}`` when trials can start and when
that changes; ``{"from": key, "messages": [...]}``; ``{"lost": key, "cause": ..., "error": ...}``; ``{"stopped": key}``;
``{"notice": text}``; ``{"refused": text}``, and then no more.
"""

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from sweep.executors.ray.actor import Post
from sweep.executors.ray.placement import NoPlaceError, Place, Places, brief
from sweep.executors.ray.ray_cluster import join_cluster, nodes, on_loss, start_cluster
from sweep.records.attempt_causes import NODE_LOST
from sweep.records.messages import Heartbeat, encode_message

_LOOK_SECONDS = 5.0  # how often the driver looks for machines that have come or gone
_PLACE_SECONDS = 300.0  # how long an attempt waits for a place
_LEAVE_SECONDS = 5.0  # to end what is on other machines; else that ends by itself, later
_NO_CLUSTER = (
    "--address {}: {}\nThis machine must be one of the cluster's; one with a token wants RAY_AUTH_MODE=token and "
    "RAY_AUTH_TOKEN_PATH here as well."
)
_QUEUED = encode_message(Heartbeat(is_queued=True)).decode()


def drive(control_fd: int, folder: Path) -> NoReturn:
    """The whole life of the driver; ends with the process when the supervisor goes or the cluster is lost.

    ``folder`` is for the files of a cluster that is started here.
    """
    control = socket.socket(fileno=control_fd)
    lines = control.makefile("rb")
    terms = json.loads(lines.readline())
    driver = _Driver(control)
    threading.Thread(target=_read, args=(lines, driver, terms["address"] is None), daemon=True).start()
    try:
        _connect(terms, folder)
    except Exception as error:
        address, why = terms["address"], brief(error)
        driver.refuse(f"no cluster could be started: {why}" if address is None else _NO_CLUSTER.format(address, why))
    driver.run(_post(terms), terms["device_class"])


def _read(lines: Any, driver: "_Driver", is_own_cluster: bool) -> None:
    for line in lines:
        driver.events.put(partial(driver.obey, json.loads(line)))
    # the supervisor has closed its end
    if not is_own_cluster:
        driver.events.put(driver.leave)
        time.sleep(_LEAVE_SECONDS)
    os._exit(0)


def _connect(terms: dict[str, Any], folder: Path) -> None:
    if terms["address"] is not None:
        join_cluster(terms["address"])
        return
    start_cluster(folder, terms["num_cpus"], terms["num_gpus"])
    on_loss(lambda: os._exit(1))


def _post(terms: dict[str, Any]) -> Post:
    """What actors are told: without a wish, trials are on GPUs where there are any."""
    post, wants_gpus = Post(**terms["post"]), terms["wants_gpus"]
    if wants_gpus is None:
        wants_gpus = bool(nodes(1))
    return post if wants_gpus else replace(post, world_size=0)


@final
@dataclass(frozen=True)
class _Waiting:
    """An attempt without a place."""

    key: int
    number: int
    task: str
    give_up_at: float


@final
class _Driver:
    """Everything but reading happens in one thread, event by event."""

    def __init__(self, control: socket.socket) -> None:
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._control = control
        self._places: Places
        self._waiting: list[_Waiting] = []
        self._told: list[Place] = []

    def run(self, post: Post, device_class: str | None) -> NoReturn:
        """Until the process ends."""
        self._places = Places(post, device_class, lambda text: self._say(notice=text), self._listen, self._when)
        look_at = 0.0
        try:
            while True:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_SECONDS
                    self._places.look()
                    self._tend_waiting()
                wait_seconds = min(look_at, self._places.settle_at) - time.monotonic()
                with suppress(queue.Empty):
                    self.events.get(timeout=max(0.0, wait_seconds))()
                self._hand_out()
        except NoPlaceError as error:
            self.refuse(str(error))

    def obey(self, request: dict[str, Any]) -> None:
        """Does what the supervisor asks for."""
        if "start" in request:
            give_up_at = time.monotonic() + _PLACE_SECONDS
            self._waiting.append(_Waiting(request["start"], request["number"], request["task"], give_up_at))
        elif "leave" in request:
            if place := self._places.at(request["leave"]):
                place.actor.ask_to_leave.remote(place.number)
        else:
            self._stop(request["stop"])

    def leave(self) -> NoReturn:
        """Ends the process, and what it has on other machines before."""
        self._places.close()
        os._exit(0)

    def refuse(self, text: str) -> NoReturn:
        """Ends the process with a reason that the user can do something about."""
        self._say(refused=f"--executor ray: {text}")
        os._exit(0)

    def _tell_places(self) -> None:
        """Tells how many there are where that has changed."""
        self._places.settle()
        usable = self._places.usable()
        if usable and usable != self._told:
            self._say(slots=len(usable), machine=usable[0].machine)
        self._told = usable

    def _hand_out(self) -> None:
        """Gives free places to those who wait."""
        self._tell_places()
        free = [place for place in self._told if place.is_free]
        for place, waiting in zip(free, self._waiting[: len(free)], strict=False):
            self._waiting.remove(waiting)
            place.key, place.number = waiting.key, waiting.number
            self._when(place.actor.start.remote(waiting.key, waiting.task), place, lambda _: None)

    def _listen(self, place: Place) -> None:
        news = place.actor.news.options(concurrency_group="news").remote()
        self._when(news, place, partial(self._hear, place))

    def _hear(self, place: Place, news: list[tuple[int, str]]) -> None:
        # of an attempt that was stopped something may still have been on its way
        if messages := [message for key, message in news if key == place.key]:
            self._say(**{"from": place.key, "messages": messages})
            if json.loads(messages[-1])["kind"] == "ending":
                place.key = None
        self._listen(place)

    def _stop(self, key: int) -> None:
        place = self._places.at(key)
        if place is not None:
            self._when(place.actor.stop.remote(place.number), place, lambda _: self._stopped(place, key))
            return
        self._waiting = [waiting for waiting in self._waiting if waiting.key != key]
        self._say(stopped=key)

    def _stopped(self, place: Place, key: int) -> None:
        if place.key == key:
            place.key = None
        self._say(stopped=key)

    def _tend_waiting(self) -> None:
        """Tells of each that it waits still, or that there will be no place for it."""
        now = time.monotonic()
        for waiting in list(self._waiting):
            if waiting.give_up_at > now:
                self._say(**{"from": waiting.key, "messages": [_QUEUED]})
                continue
            self._waiting.remove(waiting)
            error = f"the cluster had no place for it within {_PLACE_SECONDS:g} s"
            self._say(lost=waiting.key, cause=NODE_LOST, error=error)

    def _when(self, reference: Any, place: Place, then: Callable[[Any], None]) -> None:
        """``then`` gets the answer, as an event; without one the actor is lost."""

        def answered(future: Any) -> None:
            error = future.exception()
            self.events.put(partial(self._lose, place, error) if error else partial(then, future.result()))

        reference.future().add_done_callback(answered)

    def _lose(self, place: Place, error: Exception) -> None:
        """An actor does not answer any more; its attempt, if it had one, has ended with it."""
        cause = self._places.lose(place, error)
        if cause is None:
            return
        self._tell_places()  # first: the supervisor may begin another at once
        if place.key is not None:
            self._say(lost=place.key, cause=cause, error=brief(error))
        self._places.look()

    def _say(self, **answer: Any) -> None:
        self._control.sendall(json.dumps(answer).encode() + b"\n")
