"""The search space: which dotted paths vary, and over what."""

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sweep.config.errors import shorten_text
from sweep.config.trial import Scalar, TrialConfig

_MAX_CHOICES = 1000  # each is tried before anything runs
_MAX_CORNERS = 256  # that are looked at: there may be billions
_MAX_WHOLE = 2**62  # what every database holds, and what a range can count


class Parameter(BaseModel):
    """What one key varies over; exactly one of the forms below.

    ``log2 = [5, 10]``: the integers 2^5 ... 2^10.  ``int = [1, 8]``: whole numbers.  ``log = [1e-4, 1.0]``: a float
    with even steps of the logarithm.  ``float = [0.0, 0.1]``: a float.  ``choice = [...]``: one of the values.
    All bounds belong to the range.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)

    log2: Annotated[tuple[int, int] | None, Field(strict=False)] = None
    int_: Annotated[tuple[int, int] | None, Field(alias="int", strict=False)] = None
    log: Annotated[tuple[float, float] | None, Field(strict=False)] = None
    float_: Annotated[tuple[float, float] | None, Field(alias="float", strict=False)] = None
    choice: Annotated[tuple[Scalar, ...] | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = self.model_dump(by_alias=True, exclude_none=True)
        if len(forms) != 1:
            given = f"{len(forms)} are given: {', '.join(forms)}" if forms else "none is given"
            raise ValueError(f"give exactly one of log2, int, log, float, choice; {given}")
        ((form, values),) = forms.items()
        if form == "choice":
            if not values or len(set(map(repr, values))) < len(values):
                raise ValueError(
                    "choice requires one value or more, each once; add a value, or remove the repeated one"
                )
            if len(values) > _MAX_CHOICES:
                raise ValueError(
                    f"choice has {len(values)} values and allows {_MAX_CHOICES} at most; write a range with int, log2 "
                    "or log"
                )
            return self
        low, high = values
        shown = shorten_text(f"[{low!r}, {high!r}]")
        if not low < high:
            raise ValueError(f"{form} requires [low, high] with low < high, not {shown}; change the bounds")
        if form == "log" and low <= 0:
            raise ValueError(f"log requires bounds above 0, not {shown}; raise the lower one, or use float")
        if form == "log2" and not 0 <= low < high <= 30:
            raise ValueError(f"log2 requires exponents from 0 to 30, such as [4, 8] for 16 to 256, not {shown}")
        if form == "int" and max(-low, high) > _MAX_WHOLE:
            raise ValueError(f"int requires bounds from -2^62 to 2^62, not {shown}; change them")
        return self

    @property
    def form(self) -> str:
        return next(iter(self.model_dump(by_alias=True, exclude_none=True)))

    @property
    def grid_values(self) -> Sequence[Scalar] | None:
        """All values, or None where there are infinitely many."""
        if self.choice is not None:
            return self.choice
        if self.log2 is not None:
            return tuple(2**exponent for exponent in range(self.log2[0], self.log2[1] + 1))
        if self.int_ is not None:
            return range(self.int_[0], self.int_[1] + 1)
        return None

    def at(self, u: float) -> Scalar:
        """The value at share ``u`` in [0, 1) of the range; equal shares have equal weight."""
        return self.list_at([u])[0]

    def list_at(self, shares: Sequence[float]) -> list[Scalar]:
        """The value at each of ``shares``, as :meth:`at` has it."""
        values = self.grid_values
        if values is not None:
            return [values[min(int(u * len(values)), len(values) - 1)] for u in shares]
        if self.log is not None:
            low, high = map(math.log, self.log)
            return [math.exp(low + u * (high - low)) for u in shares]
        assert self.float_ is not None
        low, high = self.float_
        return [low + u * (high - low) for u in shares]

    def share(self, value: Scalar) -> float:
        """The inverse of :meth:`at`: the position of ``value`` in the range, in [0, 1]."""
        values = self.grid_values
        if values is not None:
            return (values.index(value) + 0.5) / len(values)
        assert isinstance(value, int | float)
        if self.log is not None:
            low, high = map(math.log, self.log)
            return (math.log(value) - low) / (high - low)
        assert self.float_ is not None
        return (value - self.float_[0]) / (self.float_[1] - self.float_[0])

    def has(self, value: Scalar) -> bool:
        """Whether ``value`` belongs to the range."""
        if self.grid_values is not None:
            return value in self.grid_values
        low, high = self.log or self.float_ or (0.0, 0.0)
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    def describe(self) -> str:
        """The range in words."""
        if self.choice is not None:
            return f"one of {shorten_text(', '.join(map(str, self.choice)))}"
        low, *_, high = self.extremes()
        return f"{'a power of two of ' if self.log2 else ''}{low:g} to {high:g}"

    def extremes(self) -> Sequence[Scalar]:
        """The values that are valid only if the whole range is."""
        if self.choice is not None:
            return self.choice
        return (self.at(0.0), self.grid_values[-1]) if self.grid_values else (self.log or self.float_ or ())


Space = dict[str, Parameter]


@final
class SpaceCorners:
    """The corners of a space, the combinations of its parameters' extremes, as configurations that are built once. All
    checks before a run look at these."""

    def __init__(self, space: Space, build: Callable[[dict[str, Any]], TrialConfig]) -> None:
        self._space, self._build = space, build
        self._built: dict[str, TrialConfig] = {}
        self.anywhere = {path: next(iter(parameter.extremes())) for path, parameter in space.items()}

    @property
    def first(self) -> TrialConfig:
        """The configuration at one corner."""
        return self.at({})

    def at(self, values: Mapping[str, Any]) -> TrialConfig:
        """The configuration with ``values``; every other parameter is at its first extreme, because some keys require
        others, which may be swept."""
        point = self.anywhere | dict(values)
        name = repr(point)
        if name not in self._built:
            self._built[name] = self._build(point)
        return self._built[name]

    def points(self, paths: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
        """The first combinations of the extremes of the parameters at ``paths``, by default of all."""
        varied = [path for path in self._space if paths is None or path in paths]
        combinations = itertools.product(*(self._space[path].extremes() for path in varied))
        for values in itertools.islice(combinations, _MAX_CORNERS):
            yield dict(zip(varied, values, strict=True))

    def of(self, *sections: str) -> Iterator[TrialConfig]:
        """The configurations at the combinations of the parameters in ``sections``."""
        paths = [path for path in self._space if path.partition(".")[0] in sections]
        return map(self.at, self.points(paths))


def flatten_space(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The table ``[space]`` by dotted path.

    A table that holds only names of forms is a parameter, any other is one more level of the path.
    """
    forms = {"log2", "int", "log", "float", "choice"}
    flat: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and not forms & value.keys():
            flat.update(flatten_space(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def count_grid_points(space: Space) -> int | None:
    """Number of points of the space; None where a parameter is continuous."""
    values = [parameter.grid_values for parameter in space.values()]
    return None if None in values else math.prod(map(len, filter(None, values)))


def pick_grid_point(space: Space, index: int) -> dict[str, Any]:
    """Point ``index`` of the grid in an order that is shuffled once for all, without building the grid.

    The order is a full cycle index -> (a * index + c) mod size with a coprime to size, so that a study that stops
    early has not seen only one corner.
    """
    size = count_grid_points(space)
    if size is None or not 0 <= index < size:
        raise IndexError(f"grid point {index} of {size}")
    step = max(1, round(size * 0.6180339887))  # about the golden section, which spreads neighbors widest
    while math.gcd(step, size) != 1:
        step += 1
    rest = (step * index + size // 2) % size
    point: dict[str, Any] = {}
    for path, parameter in space.items():
        values = parameter.grid_values or ()
        rest, position = divmod(rest, len(values))
        point[path] = values[position]
    return point


def explain_point(point: dict[str, Scalar], space: Space) -> str:
    """Why ``point`` does not belong to the ``space``; empty where it does."""
    if missing := [path for path in space if path not in point]:
        return f"it has no {', '.join(missing)}; give a value for every key of the space"
    if unknown := [path for path in point if path not in space]:
        return f"{', '.join(unknown)} does not vary; remove it, or add it to [space]"
    outside = describe_outside(point, space)
    return f"{outside}; change it, or widen the range in [space]" if outside else ""


def describe_outside(point: dict[str, Scalar], space: Space) -> str:
    """The values of ``point`` outside of their ranges in ``space``, with the ranges; empty without any."""
    return ", ".join(
        f"{path} = {value!r} is outside its range, {space[path].describe()}"
        for path, value in point.items()
        if path in space and not space[path].has(value)
    )


def draw_point(space: Space, seed: int, index: int) -> dict[str, Any]:
    """Point ``index`` of an independent uniform sequence; needs no earlier point."""
    generator = random.Random(f"{seed}/{index}")  # nosec B311 # proposals are to be repeatable, not secret
    return {path: parameter.at(generator.random()) for path, parameter in space.items()}
