"""The sizes of micro batches that a growing batch brings, found before the training."""

from sweep.training.data.batch_planner import BatchPlanner
from sweep.training.steps.batch_schedule import BatchSchedule
from sweep.training.steps.budget import Budget, TrainingPoint


def list_last_micro_sizes(planner: BatchPlanner, schedule: BatchSchedule, budget: Budget) -> frozenset[int]:
    """Samples of the last micro batches of the epochs of a training, by going through its windows.

    They differ from epoch to epoch where the first global batch is no multiple of the micro batch and grows. Empty
    where they do not, and where the growth depends on the training itself or on its time.
    """
    is_even = schedule.first % planner.micro == 0
    if is_even or not schedule.is_growing or not schedule.is_known_ahead or budget.is_of_time:
        return frozenset()
    point, taken, sizes = TrainingPoint(0, 0, 0.0), 0, set()
    while not budget.is_spent(point):
        samples = schedule.size(budget.share(point))
        if planner.num_samples - taken < samples + planner.least:  # the last window, maybe with what is left of it
            window = planner.cut_rest(taken, samples)[0]
            samples = window.samples
            sizes |= {part.stop - part.start for part in window.slices}
        taken = (taken + samples) % planner.num_samples
        point = point.ahead(1, samples)
    return frozenset(sizes)
