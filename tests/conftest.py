"""Settings that hold for every test and every process that a test starts."""

import os
import signal

import pytest

# OpenMP's threads spin while they wait. Where another process uses the same cores (a second test run, a busy CI
# machine) that makes a training of one second take a minute. Read when torch is loaded, hence before any import of it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A process started in the background inherits that Ctrl-C is ignored, and so would every study that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a CUDA device where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device was found")
