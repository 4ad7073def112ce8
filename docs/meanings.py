"""What each benchmark measures."""

# What each benchmark compares, by its name; all are ratios.
MEASURED: dict[str, str] = {
    "input": "images/s of crop, flip and normalization, CIFAR-10, over `DataLoader` and torchvision with 2 workers",
    "harness": "seconds of a trial over a hand-written loop with the same step: digits, ResNet-8, micro batch 64",
    "precision": "images/s in bf16 with channels last over eager fp32: ResNet-20 at 32 x 32, equal accuracy",
    "lightning": "images/s of a trial over Lightning's Trainer, its optional work switched off: digits, ResNet-8",
    "accelerate": "images/s of a trial over a loop with Accelerate: digits, ResNet-8",
    "noise": "seconds of training with the gradient noise scale over without: digits, ResNet-8, 64 samples a step",
    "monitor": "seconds of a step with monitor and ledger over without: digits, ResNet-8",
    "probe": "seconds of a probe of one shape over the 3 that it may take: digits, ResNet-8, micro batch 64",
    "forecast": "factor by which the forecast of a study's total seconds is off, either way: studies of many shapes",
    "ray_overhead": "seconds that a trial takes longer by Ray than in a process, over the 0.2 it may be: digits",
    "data_look": "seconds of the first look at 60,000 small PNGs over a loop that decodes each with Pillow",
    "data_look_again": "seconds of a look at 60,000 small PNGs that are in the cache over that loop",
    "ask": "ms from a finished trial to the next, both on the disk, over Optuna on SQLite: 10,000 trials, quasi-random",
    "ask_growth": "ms from a finished trial to the next, ours at 100,000 trials over 1,000: quasi-random",
    "ask_default": "ms from a finished trial to the next, over Optuna's TPE in memory: 10,000 trials, sampler tpe",
    "workers": "share of a core that 1,000 simulated workers cost, trials of 10 min, over the 20 % it may be",
    "open": "seconds to open a study of 100,000 trials and ask for one more, over Optuna on SQLite",
    "frames": "trials/s from a file of 100,000 to a frame, over `trials_dataframe()` of Optuna on SQLite",
    "report": "seconds of the report of 1,000 trials, from the start of a process, over the 3 that it may take",
    "report_many": "seconds of the report of 100,000 trials, from the start of a process, over the 15 it may take",
    "search_nsga2": "searches an hour to 99 % of the hypervolume over Optuna's NSGA-II: 20 seeds a table",
    "search_default": "searches an hour to 99 % of the hypervolume over Optuna's default sampler: 20 seeds a table",
    "search_front": "share of searches in which no configuration of the true front was stopped",
    "search_moasha": "searches an hour to 99 % of the hypervolume over Syne Tune's MO-ASHA: 20 seeds a table",
}
