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
    "precision": Measured(
        "ResNet-20 at 32 x 32 in bf16 with channels last", "the same in eager fp32, equal accuracy", "images/s"
    ),
    "lightning": Measured(f"a trial {_DIGITS}", "Lightning's Trainer, its optional work switched off", "images/s"),
    "accelerate": Measured(f"a trial {_DIGITS}", "a loop with Accelerate", "images/s"),
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
    "ray_overhead": Measured(
        "what a trial on the digits takes longer on Ray than in a process", "a budget of 0.2 s", BUDGET
    ),
    "ask": Measured(
        f"time {_IDLE}, on the disk: 10,000 trials, quasi-random points", "Optuna on SQLite, the same", "milliseconds"
    ),
    "ask_growth": Measured(
        f"time {_IDLE} at 100,000 trials, quasi-random points", "the same at 1,000 trials", "milliseconds"
    ),
    "ask_default": Measured(
        f"time {_IDLE}: 10,000 trials, sampler `tpe`", "Optuna's TPE in memory, the same", "milliseconds"
    ),
    "workers": Measured(
        "the supervisor of 1,000 simulated workers, trials of 10 min", "a budget of 20 % of a core", BUDGET
    ),
    "open": Measured(
        "opening a study of 100,000 trials and proposing one more", "Optuna on SQLite, the same", "seconds"
    ),
    "frames": Measured(
        "reading 100,000 trials from a file into a frame", "`trials_dataframe()` of Optuna on SQLite", "trials/s"
    ),
    "report": Measured("the report of 1,000 trials, with the start of Python", "a budget of 3 s", BUDGET),
    "report_many": Measured("the report of 100,000 trials, with the start of Python", "a budget of 15 s", BUDGET),
    "search_nsga2": Measured(_SEARCH, "Optuna's NSGA-II", "searches/hour"),
    "search_default": Measured(_SEARCH, "Optuna's default sampler", "searches/hour"),
    "search_front": Measured(
        "searches in which no configuration of the true front was stopped", "all searches", "share"
    ),
    "search_moasha": Measured(_SEARCH, "Syne Tune's MO-ASHA", "searches/hour"),
}
