"""The search over configurations: propose, forecast, train or reuse, prune, confirm.

Here belongs what decides which trial runs next; how it runs belongs to `sweep.executors`. `sampler` is the protocol of
samplers, `samplers` and `cost_aware` are the samplers, `pruner` stops trials early, `seeds` chooses what is trained
again, `study_forecast` tells what a study will take, `ask` decides a study from answers and `guided_study` makes it;
`session` opens a study and `tuner` runs it."""

import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # of Optuna's progress bars, which are not used
