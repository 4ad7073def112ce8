"""A Ray cluster of this machine's own, or one that exists: how it is reached, and what there is on it."""

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

_STORE_BYTES = 80 << 20  # messages are small; Ray's least
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's only way to the loopback address; 127.0.0.1 alone becomes the machine's own, open to all
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
_VITAL = ("raylet", "gcs_server")


@final
@dataclass(frozen=True)
class Node:
    """A machine of the cluster with the places on it: devices, or groups of them that a trial has together."""

    key: str
    num_places: int
    num_cpus: int

    @property
    def threads(self) -> int | None:
        """A place's share of the cores; None leaves a single place to torch, which knows cores from hyperthreads."""
        return max(1, self.num_cpus // self.num_places) if self.num_places > 1 else None


def start_cluster(folder: Path, num_cpus: int, num_gpus: int) -> None:
    """A cluster on loopback, closed to other users, that keeps its files in ``folder`` and dies with this process."""
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
        _system_config={"memory_monitor_refresh_ms": 0},  # it would kill whom the kernel need not
    )


def join_cluster(address: str) -> None:
    """Connects to the cluster at ``address``; its token is where Ray looks for one.

    Raises:
        Exception: whatever Ray raises where there is none, or it does not let us in.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def nodes(world_size: int) -> list[Node]:
    """The machines that are up and have a place: ``world_size`` GPUs each, or one CPU core where it is 0."""
    import ray

    found = []
    seen: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for node in seen:
        has: dict[str, Any] = node["Resources"] if node["Alive"] else {}
        num_cpus, num_gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        num_places = num_gpus // world_size if world_size else num_cpus
        if num_places:
            found.append(Node(node["NodeID"], num_places, num_cpus))
    return found


def close_token() -> None:
    """Sees to it that nobody else may read the token of this user's clusters; Ray itself would leave it open."""
    path = Path.home() / ".ray" / "auth_token"
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"auth_token.{os.getpid()}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(own, path)  # whole, or the one that is there
    own.unlink()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)


def on_loss(leave: Callable[[], None]) -> None:
    """Calls ``leave`` in a thread as soon as the cluster of this process is broken; Ray itself takes 15 s and more."""
    lost = select.poll()
    for pid in _children(os.getpid()):
        if Path(f"/proc/{pid}/comm").read_text().strip() in _VITAL:
            lost.register(os.pidfd_open(pid), select.POLLIN)

    def watch() -> None:
        lost.poll()
        leave()

    threading.Thread(target=watch, daemon=True).start()


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]
