"""What simulated workers say while they train: what a table's trainings said, stretched to any time."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig, flatten
from sweep.search.replay.recorded_table import Table
from sweep.search.replay.replay_executor import SimulatedClock, Told, chatter, schedule


def loosened(spec: StudySpec) -> StudySpec:
    """``spec`` with each recorded row of fractions as a range, so that there are points enough.

    Raises:
        InputError: there is no such row.
    """
    space = {path: _range(parameter) for path, parameter in spec.space.items()}
    if all(parameter.grid_values is not None for parameter in space.values()):
        raise InputError("--workers: the table varies no key over fractions, so there are not points for many trials.")
    return spec.model_copy(update={"space": space})


def _range(parameter: Parameter) -> Parameter:
    numbers = [value for value in parameter.grid_values or () if isinstance(value, float)]
    if len(numbers) < 2 or len(numbers) < len(parameter.grid_values or ()):
        return parameter
    low, high = min(numbers), max(numbers)
    return Parameter(log=(low, high)) if low > 0 else Parameter(float_=(low, high))


def teller(
    table: Table, spec: StudySpec, trial_seconds: float, clock: SimulatedClock
) -> Callable[[TrialConfig], Iterator[Told]]:
    """What a worker says of a configuration: what the nearest recorded one said, stretched. Signs of life begin when
    the first trials have ended, for what is before that does not count."""
    trainings = [next(iter(table.curves[point].values())) for point in table.points]
    words = [schedule(training) for training in trainings]
    stretch = trial_seconds / median(said[-1][0] for said in words)
    rows = {point: row for row, point in enumerate(table.points)}
    axes = [sorted({point[axis] for point in table.points}, key=str) for axis in range(len(spec.space))]

    def tell(config: TrialConfig) -> Iterator[Told]:
        flat = flatten(config)
        nearest = tuple(_nearest(flat[path], axis) for path, axis in zip(spec.space, axes, strict=True))
        return chatter(words[rows.get(nearest, 0)], stretch, max(0.0, trial_seconds - clock()))

    return tell


def _nearest(value: Scalar, recorded: Sequence[Scalar]) -> Scalar:
    numbers = [each for each in recorded if isinstance(each, float)]
    return min(numbers, key=lambda each: abs(each - value)) if isinstance(value, float) and numbers else value
