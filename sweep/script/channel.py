"""The connection of a training script to the trial that it is: a line of JSON for each message. Imports no torch."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, final

VARIABLE = "SWEEP_TRIAL"  # of the environment: JSON of :func:`describe_script_trial`


def describe_script_trial(
    address: str, values: Mapping[str, Any], metric: str, folder: str, *, is_probe: bool = False
) -> str:
    """What a script is told: the ``address`` of its supervisor's socket, its ``values`` by dotted key, the ``metric``
    to report and the ``folder`` of its checkpoints. A probe also compares its first gradients."""
    told = {"address": address, "values": dict(values), "metric": metric, "folder": folder, "is_probe": is_probe}
    return json.dumps(told)


@final
class Channel:
    """The script's end of the connection."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.values: dict[str, Any] = told["values"]
        self.metric, self.folder, self.is_probe = str(told["metric"]), str(told["folder"]), bool(told["is_probe"])
        self.rank, self.world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self._address, self._pid = str(told["address"]), os.getpid()
        self._socket: socket.socket | None = None

    def send(self, kind: str, **content: Any) -> None:
        """Sends a message; nothing from a process that was forked from this one, or once the supervisor is gone."""
        if os.getpid() != self._pid:
            return
        with suppress(OSError):
            if self._socket is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    connection.connect(self._address)
                except OSError:
                    connection.close()
                    return
                self._socket = connection
            self._socket.sendall(json.dumps({"kind": kind, "rank": self.rank, **content}).encode() + b"\n")

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the supervisor has asked the script to end."""
        if self._socket is None or os.getpid() != self._pid:
            return False
        with suppress(OSError):  # nothing to read, or no supervisor
            return bool(self._socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        return False


@cache
def open_channel() -> Channel | None:
    """The connection of this process; None outside of a study."""
    told = os.environ.get(VARIABLE)
    return Channel(json.loads(told)) if told else None
