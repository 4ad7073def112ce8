"""The device of a task: how a process takes it, and reports to the supervisor which one it is."""

from collections.abc import Iterator

import torch

from sweep.measurement.device import identify_gpu, make_moments, make_synchronizer, reach_gpu, resolve_device
from sweep.records.messages import Heartbeat, Task
from sweep.training.plugins import load_plugin
from sweep.training.steps.trial_state import TrialState
from sweep.training.world import SOLO, World


def choose_device(task: Task, state: TrialState) -> None:
    """Sets threads, plug-in and device of this process as ``task`` requires; ``state.ledger`` times that device.

    Raises:
        InputError: the plug-in or the device is not there.
        DeviceFullError: other programs hold all memory of the GPU.
    """
    if task.threads:
        torch.set_num_threads(task.threads)
    if task.plugin:
        load_plugin(task.plugin)
    state.device = resolve_device(task.device)
    state.ledger.synchronize, state.ledger.moments = make_synchronizer(state.device), make_moments(state.device)
    reach_gpu(state.device)
    if state.device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # it chooses algorithms during the warm-up


def announce_gpus(device: torch.device, world: World = SOLO) -> Iterator[Heartbeat]:
    """A message with the UUIDs of the GPUs of all ranks; none where they train on a CPU."""
    if device.type == "cuda":
        yield Heartbeat(gpus=world.gather_texts(identify_gpu(device)))
