"""What each benchmark measures. Every result is a ratio: ours over what it is compared with."""

from typing import NamedTuple

BUDGET = "share of the budget"


class Measured(NamedTuple):
    """``unit`` is that of both arms of the ratio, ``against`` the denominator. A ratio to what is allowed has
    :data:`BUDGET` as its unit."""

    ours: str
    against: str
    unit: str


_DIGITS = "of ResNet-8 on the digits"

MEASURED: dict[str, Measured] = {
    "input": Measured(
        "crop, flip and normalization of CIFAR-10", "`DataLoader` and torchvision with 2 workers", "images/s"
    ),
    "harness": Measured(f"a trial {_DIGITS}, micro batch 64", "a hand-written loop with the same step", "seconds"),
    "noise": Measured(
        f"a training {_DIGITS} with the gradient noise scale, 64 samples a step", "the same without", "seconds"
    ),
    "monitor": Measured(f"a step {_DIGITS} with monitor and time ledger", "the same without both", "seconds"),
    "script_trial": Measured(
        "the script `gpt_micro.py` as a trial, with the start of Python", "the same script alone", "seconds"
    ),
    "script_overhead": Measured("a step of 2 to 3 ms of an observed script", "the same step, not observed", "seconds"),
    "script_loop": Measured(
        f"training seconds that a script {_DIGITS} records", "the same training by this project's loop", "seconds"
    ),
    "forecast": Measured(
        "the forecast of a study's total time, studies of many shapes",
        "the measured total, the larger over the smaller",
        "seconds",
    ),
    "frames": Measured(
        "reading 100,000 trials from a file into a frame", "`trials_dataframe()` of Optuna on SQLite", "trials/s"
    ),
    "map_decode": Measured(
        "the first decoding of a folder of JPEG files of 64 pixels",
        "a pool of Pillow that stores the pixels",
        "images/s",
    ),
    "map_draft": Measured(
        "the first decoding of a folder of JPEG files of 512 pixels to 64",
        "a pool of Pillow that stores the pixels",
        "images/s",
    ),
    "map_load": Measured(
        "loading a decoded folder of 200,000 files again", "a budget of 0.3 s per 100,000 files", BUDGET
    ),
    "map_epoch": Measured(
        "crop, flip and normalization of a decoded folder, an epoch",
        "`ImageFolder` and `DataLoader` of torchvision",
        "images/s",
    ),
    "map_steps": Measured(
        "steps of ResNet-8 from a decoded folder of 200,000 images of 64 pixels",
        "the same on an array in memory",
        "steps/s",
    ),
    "map_steps_small": Measured(
        "steps of ResNet-8 from a decoded folder of 60,000 images of 32 pixels",
        "the same on resident images",
        "steps/s",
    ),
    "report": Measured("the report of 1,000 trials, with the start of Python", "a budget of 3 s", BUDGET),
    "report_many": Measured("the report of 100,000 trials, with the start of Python", "a budget of 15 s", BUDGET),
}
