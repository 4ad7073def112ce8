"""NVIDIA's Multi-Process Service, by which several processes compute on one GPU at the same time."""

import logging
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from sweep.executors.helper_process import end_process

_CONTROL = "nvidia-cuda-mps-control"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_CHOICE_OF_GPUS = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
_SECONDS = 30.0
# Ends the service when its standard input is closed: also when the supervisor, which has the other end, is killed.
_KEEPER = f"{_CONTROL} -d >/dev/null && echo ready || echo failed; cat >/dev/null; echo quit | {_CONTROL} >/dev/null"

_log = logging.getLogger(__name__)


@contextmanager
def share_gpu(device: str) -> Iterator[dict[str, str]]:
    """Starts the service for ``device`` until the block ends; yields the environment of the processes that use it.

    The service sees every GPU, and the processes name theirs by UUID: it would count those of a list of its own anew,
    so that the numbers of the processes meant others. The environment is empty if there is nothing to start (a CPU),
    that of the user's own service where one runs, and empty with a warning if the service does not start: processes
    then take turns.
    """
    if not device.startswith("cuda"):
        yield {}
        return
    if _PIPES in os.environ:
        yield {_PIPES: os.environ[_PIPES]}
        return
    if shutil.which(_CONTROL) is None:
        _log.warning("%s is not installed: trials on one GPU take turns, which is slower", _CONTROL)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="sweep-mps-") as folder:
        environment = {_PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        with _run_keeper(environment) as is_ready:
            if not is_ready:
                _log.warning("%s does not start: trials on one GPU take turns, which is slower", _CONTROL)
            yield environment if is_ready else {}


@contextmanager
def _run_keeper(environment: dict[str, str]) -> Iterator[bool]:
    inherited = {name: value for name, value in os.environ.items() if name not in _CHOICE_OF_GPUS}
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=inherited | environment,
        start_new_session=True,  # the terminal's Ctrl-C is not for it
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        readable, _, _ = select.select([keeper.stdout], [], [], _SECONDS)
        yield bool(readable) and keeper.stdout.readline().strip() == b"ready"
    finally:
        keeper.stdin.close()
        end_process(keeper, _SECONDS)
        keeper.stdout.close()
