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
_IDLE = "from the end of a trial to the start of the next"
_SEARCH = "searches an hour until 99 % of the hypervolume, 20 seeds a table"

MEASURED: dict[str, Measured] = {
    "input": Measured(
        "crop, flip and normalization of CIFAR-10", "`DataLoader` and torchvision with 2 workers", "images/s"
    ),
    "harness": Measured(f"a trial {_DIGITS}, micro batch 64", "a hand-written loop with the same step", "seconds"),
    "lightning": Measured(f"a trial {_DIGITS}", "Lightning's Trainer, its optional work switched off", "images/s"),
    "noise": Measured(
        f"a training {_DIGITS} with the gradient noise scale, 64 samples a step", "the same without", "seconds"
    ),
    "monitor": Measured(f"a step {_DIGITS} with monitor and time ledger", "the same without both", "seconds"),
    "probe": Measured(f"the probe of one shape {_DIGITS}, micro batch 64", "its budget of 3 s", BUDGET),
    "forecast": Measured(
        "the forecast of a study's total time, studies of many shapes",
        "the measured total, the larger over the smaller",
        "seconds",
    ),
    "ask": Measured(
        f"time {_IDLE}, on the disk: 10,000 trials, quasi-random points", "Optuna on SQLite, the same", "milliseconds"
    ),
    "frames": Measured(
        "reading 100,000 trials from a file into a frame", "`trials_dataframe()` of Optuna on SQLite", "trials/s"
    ),
    "report": Measured("the report of 1,000 trials, with the start of Python", "a budget of 3 s", BUDGET),
    "report_many": Measured("the report of 100,000 trials, with the start of Python", "a budget of 15 s", BUDGET),
    "search_nsga2": Measured(_SEARCH, "Optuna's NSGA-II", "searches/hour"),
    "search_default": Measured(_SEARCH, "Optuna's default sampler", "searches/hour"),
    "search_gp": Measured(_SEARCH, "Optuna's Gaussian process", "searches/hour"),
    "search_qlognehvi": Measured(_SEARCH, "BoTorch's qLogNEHVI", "searches/hour"),
    "search_random": Measured(_SEARCH, "a random search", "searches/hour"),
    "search_front": Measured(
        "searches in which no configuration of the true front was stopped", "all searches", "share"
    ),
    "search_moasha": Measured(_SEARCH, "Syne Tune's MO-ASHA", "searches/hour"),
}
