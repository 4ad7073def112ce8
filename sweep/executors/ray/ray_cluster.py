"""Starting a Ray cluster on this machine, joining an existing one, and the nodes of either."""

import logging
import os
import secrets
import select
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from sweep.training.subprocesses import list_children

_STORE_BYTES = 80 << 20  # the minimum of Ray; messages are small
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # without it Ray replaces 127.0.0.1 by the machine's address, which is open to others
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
_VITAL = ("raylet", "gcs_server")


@final
@dataclass(frozen=True)
class Node:
    """A machine of the cluster. A slot is a device, or as many of them as a trial requires."""

    key: str
    num_slots: int
    num_cpus: int

    @property
    def threads(self) -> int | None:
        """A slot's share of the cores; None for a single slot: torch itself distinguishes hyperthreads."""
        return max(1, self.num_cpus // self.num_slots) if self.num_slots > 1 else None


def start_cluster(folder: Path, num_cpus: int, num_gpus: int) -> None:
    """Starts a cluster on loopback, closed to other users, with its files in ``folder``; it dies with this process."""
    os.environ.update(_ENVIRONMENT)
    close_token()
    import ray

    ray.init(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        _system_config={"memory_monitor_refresh_ms": 0},  # it would kill processes before the kernel has to
    )


def join_cluster(address: str) -> None:
    """Connects to the cluster at ``address``, with the token that Ray finds.

    Raises:
        Exception: any error of Ray: there is no cluster, or it refuses the connection.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def list_nodes(world_size: int) -> list[Node]:
    """The nodes that are up and have a slot: ``world_size`` GPUs each, or one CPU core if it is 0."""
    import ray

    nodes = []
    described: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for node in described:
        resources: dict[str, Any] = node["Resources"] if node["Alive"] else {}
        num_cpus, num_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        num_slots = num_gpus // world_size if world_size else num_cpus
        if num_slots:
            nodes.append(Node(node["NodeID"], num_slots, num_cpus))
    return nodes


def close_token() -> None:
    """Makes the token of this user's clusters unreadable for others; Ray itself would leave it readable."""
    path = Path.home() / ".ray" / "auth_token"
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"auth_token.{os.getpid()}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(own, path)  # a whole token, or the existing one
    own.unlink()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)


def call_on_loss(callback: Callable[[], None]) -> None:
    """Calls ``callback`` in a thread as soon as the cluster of this process is lost; Ray itself takes 15 s."""
    lost = select.poll()
    for pid in list_children(os.getpid()):
        if Path(f"/proc/{pid}/comm").read_text().strip() in _VITAL:
            lost.register(os.pidfd_open(pid), select.POLLIN)

    def watch() -> None:
        lost.poll()
        callback()

    threading.Thread(target=watch, daemon=True).start()
