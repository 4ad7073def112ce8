"""The ledger's clock, which waits for the device at the edges of windows alone, against the device's own."""

from typing import Any

import pytest
import torch

from sweep.config.trial import build_config
from sweep.measurement.clock import Ledger
from sweep.measurement.device import make_synchronizer
from sweep.training.setup import prepare_training
from sweep.training.step import set_lr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]
CUDA: Any = torch.cuda  # torch leaves events untyped
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("micro", [8, 512])  # bound by what the host launches, and by the device
def test_a_window_is_as_long_as_the_devices_events_say(micro: int) -> None:
    values = {"model.name": "resnet18", "data.name": "synthetic", "data.subset": 4096, "batch.micro": micro}
    setup = prepare_training(build_config(values, "test"), DEVICE)
    set_lr(setup.step.optimizer, 0.0)
    ledger = Ledger()
    ledger.synchronize = make_synchronizer(DEVICE)
    begin, end = (CUDA.Event(enable_timing=True) for _ in range(2))

    def take(num_steps: int) -> int:
        windows = setup.planner.windows_of_epoch(micro)
        samples = 0
        for index in range(num_steps):
            if index % len(windows) == 0:
                setup.feeder.begin_epoch(index // len(windows), windows)
            window = windows[index % len(windows)]
            setup.step(ledger.waiting(setup.feeder.micro_batches(window)), window.samples)
            samples += window.samples
        return samples

    take(10)
    ledger.open_window()
    begin.record()
    samples = take(100)
    end.record()
    ledger.close_window(100, samples, is_full=True)
    assert ledger.train_seconds == pytest.approx(begin.elapsed_time(end) / 1e3, rel=0.02)
    assert ledger.windows[-1].seconds > 0.05
