"""What the keys of a configuration and of a study mean, and in which unit they count.

A configuration key needs a line here only where it has a unit, or where its field's own description does not say all.
"""

# by dotted path: unit, and what stands before the field's description
CONFIGURATION: dict[str, tuple[str, str]] = {
    "model.name": ("", "the model that is trained; a plug-in may add more"),
    "model.ghost_batch": ("samples", ""),
    "model.dropout": ("fraction", "share of activations that are dropped: before a ResNet's head, inside a ViT"),
    "model.stochastic_depth": ("fraction", ""),
    "model.freeze_stages": ("stages", ""),
    "data.name": ("", "the data set; a plug-in may add more"),
    "data.subset": ("images", ""),
    "data.image_size": ("pixels", ""),
    "data.augment": ("", "drawn for each sample of each epoch"),
    "data.augment_ops": ("operations", ""),
    "data.placement": ("", "`device`: all images lie on the device where there is room; `host`: they are streamed"),
    "data.workers": ("processes", "that read images which are streamed"),
    "batch.micro": ("samples", "samples of one forward and backward pass, at most"),
    "batch.accumulation": ("micro batches", ""),
    "batch.global": ("samples", "replaces `batch.accumulation`"),
    "batch.memory_low": ("fraction", ""),
    "batch.memory_high": ("fraction", ""),
    "batch.schedule_milestones": ("fraction", ""),
    "optimizer.name": ("", "how a gradient becomes a step"),
    "optimizer.lr": ("", "learning rate at the top of the schedule, before `optimizer.lr_rule`"),
    "optimizer.reference_batch": ("samples", ""),
    "optimizer.weight_decay": ("", "of weights; norms and biases are spared"),
    "optimizer.momentum": ("", "momentum of the SGD family"),
    "schedule.name": ("", "how the learning rate goes on after the warm-up"),
    "schedule.warmup": ("`schedule.warmup_unit`", ""),
    "schedule.warmup_unit": ("", "what `schedule.warmup` counts; a fraction is one of the budget"),
    "schedule.peak": ("fraction", ""),
    "schedule.final": ("fraction", ""),
    "budget.epochs": ("passes", "passes over the training split; a part of one is rounded up to a step"),
    "budget.steps": ("optimizer steps", "replaces the other budgets"),
    "budget.samples": ("samples", "replaces the other budgets"),
    "budget.seconds": ("seconds", "replaces the other budgets"),
    "budget.target_accuracy": ("fraction", "replaces the other budgets"),
    "budget.max_epochs": ("passes", ""),
    "precision.dtype": ("", "number format of a step; `bf16`, `fp16` keep the weights in 32 bits; `tf32` wants a GPU"),
    "precision.channels_last": ("", "memory layout of images and convolutions"),
    "precision.compile": ("", "`torch.compile`"),
    "regularization.label_smoothing": ("fraction", "share of the target that is spread over all classes"),
    "regularization.grad_clip": ("", "largest norm of the gradient of a step; absent: as large as it is"),
    "distributed.world_size": ("ranks", ""),
    "seed": ("", "of weights, order and draws; inside a study it is the study's and cannot be set"),
}

STUDY: dict[str, str] = {
    "name": "the folder of the records under the root",
    "question": "what the study is to answer; stands in the report",
    "seed": "search trials use it, confirming trials the seeds after it",
    "trials": "search trials; `cancelled` and `not_fitting` ones do not count",
    "timeout": 'of one invocation, in seconds or as `"90s"`, `"10m"`, `"2h"`, `"1d"`',
    "trial_timeout": "of one trial, written likewise; a slower one ends as `timed_out`",
    "stall_timeout": (
        "of silence, written likewise; a trial that says nothing for so long is stopped and tried again, three times "
        "at most; longer than its longest compile, step or checkpoint"
    ),
    "objectives": "metrics to trade off, from the table below",
    "sampler": "where the next configuration comes from",
    "pruner": "whether a trial without a chance is stopped early",
    "retune": "keys that are searched anew for each combination of the `batch.*` parameters; they take turns",
    "confirm.max_configurations": "configurations of the front, and next to it, that are trained again",
    "confirm.seeds": (
        "fresh seeds for each of them, at most; the two cheapest get two, the others a second where their place is not "
        "settled at 95 %"
    ),
    "base": "any configuration key: what stays fixed",
    "space": "any configuration key: what varies, and over what",
}

# What each benchmark compares, by its name; all are ratios.
MEASURED: dict[str, str] = {
    "input": "images/s of crop, flip and normalisation, CIFAR-10, over `DataLoader` and torchvision with 2 workers",
    "harness": "seconds of a trial over a hand-written loop with the same step: digits, ResNet-8, micro batch 64",
    "precision": "images/s in bf16 with channels last over eager fp32: ResNet-20 at 32 x 32, equal accuracy",
    "lightning": "images/s of a trial over Lightning's Trainer, everything off that costs it time: digits, ResNet-8",
    "accelerate": "images/s of a trial over a loop with Accelerate: digits, ResNet-8",
    "noise": "seconds of training with the gradient noise scale over without: digits, ResNet-8, 64 samples a step",
    "monitor": "seconds of a step with monitor and ledger over without: digits, ResNet-8",
    "probe": "seconds of a probe of one shape over the 3 that it may take: digits, ResNet-8, micro batch 64",
    "forecast": "factor by which the predicted seconds of the trials that ran are off, either way: quickstart",
    "ray_overhead": "seconds that a trial takes longer by Ray than in a process, over the 0.2 it may be: digits",
    "ask": "ms from a finished trial to the next, both on the disk, over Optuna on SQLite: 10,000 trials, quasi-random",
    "ask_growth": "ms from a finished trial to the next, ours at 100,000 trials over 1,000: quasi-random",
    "ask_default": "ms from a finished trial to the next, over Optuna's TPE in memory: 10,000 trials, default sampler",
    "workers": "share of a core that 1,000 simulated workers cost, trials of 10 min, over the 20 % it may be",
    "open": "seconds to open a study of 100,000 trials and ask for one more, over Optuna on SQLite",
    "frames": "trials/s from a file of 100,000 to a frame, over `trials_dataframe()` of Optuna on SQLite",
    "report": "seconds of the report of 1,000 trials, from the start of a process, over the 3 that it may take",
    "report_many": "seconds of the report of 100,000 trials, from the start of a process, over the 15 it may take",
    "search_nsga2": "searches an hour to 99 % of the hypervolume over Optuna's NSGA-II: 20 seeds a table",
    "search_default": "searches an hour to 99 % of the hypervolume over Optuna's default sampler: 20 seeds a table",
    "search_confirm": "the same with our confirming trials counted, and none of its",
    "search_front": "share of searches in which no configuration of the true front was stopped",
    "search_moasha": "searches an hour to 99 % of the hypervolume over Syne Tune's MO-ASHA: 20 seeds a table",
}
