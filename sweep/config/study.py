"""A study: the question, the base configuration, the space, the objectives and the budget."""

import math
import re
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import FORESEEABLE, IMAGES, USUAL_TOLERANCE, Metric, Quality, find_metric, list_objectives
from sweep.config.script import PREFIX, ScriptSection, read_asked, read_placed
from sweep.config.sections import Seconds, Section, list_fields
from sweep.config.space import (
    Space,
    SpaceCorners,
    count_grid_points,
    explain_point,
    flatten_space,
    pick_grid_point,
)
from sweep.config.tables import resolve
from sweep.config.trial import (
    Scalar,
    TrialConfig,
    build_config,
    config_keys,
    find_rivals,
    flatten_config,
    flatten_table,
    has_effect,
    normalize_values,
    replace_keys,
)

FEWEST_SEEDS = 3  # a configuration with fewer fresh seeds is never recommended
FEWEST_CONFIGURATIONS = 3  # with which a batch size counts as tuned
# The seconds that a trial cost: the first of these metrics that was measured.
TRIAL_SECONDS = ("total_seconds", "train_seconds")


class ConfirmTime(NamedTuple):
    """Seconds for confirming trials."""

    in_all: float
    used: float

    @property
    def left(self) -> float:
        """Negative where more were used."""
        return self.in_all - self.used


class Confirm(Section):
    """How much is trained again with fresh seeds, so that the answer is settled."""

    max_configurations: Annotated[int, Field(ge=0, le=1000)] = Field(
        16, description="most configurations to train again"
    )
    seeds: Annotated[int, Field(ge=0, le=1000)] = Field(
        20,
        description=f"fresh seeds for each of them, at most; {FEWEST_SEEDS} are the least with which a configuration "
        "is recommended, more are used only where the answer is not settled",
    )
    share: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.5,
        description="how long confirming may take, as a multiple of the seconds of search trials (0.5: half as long), "
        f"beside what a search that ended early has left; one configuration gets its first {FEWEST_SEEDS} seeds anyway",
    )

    @property
    def most_trials(self) -> int:
        """The most confirming trials; their time may allow fewer."""
        return self.max_configurations * self.seeds

    @property
    def least_trials(self) -> int:
        """The fewest confirming trials: enough to recommend one configuration."""
        return min(FEWEST_SEEDS, self.seeds, self.most_trials)

    def count_expected(self, num_search: int) -> int:
        """The number of confirming trials after ``num_search`` search trials, if both kinds take equally long."""
        return min(self.most_trials, max(math.ceil(self.share * num_search), self.least_trials))

    def measure_time(self, trials: Collection[tuple[str, Hashable, float]]) -> ConfirmTime:
        """The time for confirming after ``trials``: the phase of each, its configuration and its seconds. A confirming
        trial without finite seconds, which has not ended, counts as the search trial of its configuration."""
        searched = {point: seconds for phase, point, seconds in trials if phase == "search"}
        costs = [seconds for phase, _, seconds in trials if phase == "search"]
        spent = [
            seconds if math.isfinite(seconds) else searched.get(point, 0.0)
            for phase, point, seconds in trials
            if phase == "confirm"
        ]
        return ConfirmTime(self.share * sum(filter(math.isfinite, costs)), sum(filter(math.isfinite, spent)))

    def list_raises(self, num_configurations: int, num_seeds: int) -> dict[str, object]:
        """The keys to raise for more fresh seeds, with their values: twice the share of time, and each other limit that
        ``num_configurations`` or ``num_seeds`` of one configuration has reached, to its default at least."""
        changes: dict[str, object] = {"confirm.share": 2 * self.share}
        if num_configurations >= self.max_configurations:
            changes["confirm.max_configurations"] = max(Confirm().max_configurations, 2 * self.max_configurations)
        if num_seeds >= self.seeds:
            changes["confirm.seeds"] = max(Confirm().seeds, 2 * self.seeds)
        return changes

    def describe_limits(self, num_search: int) -> str:
        """What comes after ``num_search`` search trials, in words."""
        expected = self.count_expected(num_search)
        count = f"{'at most' if expected == self.most_trials else 'about'} {expected:,}"
        return f"{count} to confirm for about {self.share:.0%} of their time"


class Tolerance(Section):
    """Differences that do not matter to the user."""

    accuracy: Annotated[float, Field(gt=0, lt=1)] = Field(
        USUAL_TOLERANCE, description="difference of accuracy that does not matter: 0.005 are 0.5 points"
    )
    quality: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="the same of what a script reports, in its unit; absent: 0.005 of a share, 0.01 nats, else the "
        "spread between seeds",
    )
    time: Annotated[float, Field(gt=0, lt=10)] = Field(0.05, description="the same as a share of the training time")
    memory: Annotated[float, Field(gt=0, lt=10)] = Field(0.05, description="the same as a share of the memory")


class AnswerRules(Section):
    """What the answer may neglect, and when one of its statements is settled."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        0.95, description="probability from which on a statement is settled"
    )
    tolerance: Tolerance = Tolerance()


class Price(NamedTuple):
    """What an hour of everything that a study runs on costs, in ``currency``, a text that may be empty."""

    per_hour: float
    currency: str

    def of(self, seconds: float) -> float:
        """What ``seconds`` cost."""
        return self.per_hour * seconds / 3600.0


_SMALL_GRID = 3000  # points
FIXED_DESIGNS = ("qmc", "random", "grid")  # samplers whose points do not depend on results
_NOT_SWEPT = ("data.name", "data.root", "data.on_bad_image", "data.validation_share")  # they choose the images


class StudySpec(Section):
    """A validated study. Read one with :func:`sweep.config.study_file.load_study`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = Field(
        description="name, and folder under the root"
    )
    question: str = Field("", description="heading of the report")
    seed: Annotated[int, Field(ge=0, lt=2**30)] = Field(
        0, description="seed of search trials; confirming trials take the next ones"
    )
    trials: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20, description="number of search trials (cancelled, refused and retried ones do not count)"
    )
    timeout: Seconds | None = Field(None, description="time limit of one `sweep run`")
    search_timeout: Seconds | None = Field(None, description="time limit of its search; confirming follows")
    trial_timeout: Seconds | None = Field(None, description="time limit of one trial; then `timed_out`")
    stall_timeout: Seconds = Field(
        600.0,
        description="time limit between two messages of a trial, which is then retried; longer than any "
        "compile, step or checkpoint",
    )
    objectives: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        ("val_accuracy", "train_seconds", "peak_memory_bytes"), description="metrics to trade off"
    )
    sampler: Literal["tpe", "nsga2", "qmc", "random", "grid", "gp", "cost_aware"] = Field(
        "cost_aware", description="source of the next configuration"
    )
    pruner: Literal["none", "front"] = Field(
        "front",
        description="early-stopping rule; absent with a `sampler` that does not learn (`qmc`, `random`, `grid`), or "
        f"with objectives other than {', '.join(f'`{name}`' for name in sorted(FORESEEABLE))}: `none`",
    )
    first: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = Field(
        (), description="points to try first, each with a value for every key of the space"
    )
    deliberate: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="keys without advice, chosen on purpose"
    )
    price_per_hour: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="cost of an hour of all machines of the study"
    )
    currency: Annotated[str, Field(max_length=16)] = Field("", description='such as `"EUR"`')
    confirm: Confirm = Confirm()
    answer: AnswerRules = AnswerRules()
    script: ScriptSection | None = Field(None, description="a program of yours that trains every trial")
    base: dict[str, Any] = Field(default_factory=dict, description="configuration keys that stay fixed")
    space: Space = Field(default_factory=dict, description="configuration keys that vary, and over what")

    @model_validator(mode="before")
    @classmethod
    def _fill_pruner(cls, data: Any) -> Any:
        # here and not where it is used, so that the record has the rule that stopped trials; a design is carried out
        if not isinstance(data, dict) or "pruner" in data:
            return data
        objectives = data.get("objectives", cls.model_fields["objectives"].default)
        if "objectives" not in data and isinstance(data.get("script"), dict):
            quality = Quality(name=str(data["script"].get("metric", "val_accuracy")))
            objectives = (quality.column, *objectives[1:])
            data = data | {"objectives": objectives}
        is_learned = data.get("sampler") not in FIXED_DESIGNS
        is_foreseen = isinstance(objectives, Sequence) and FORESEEABLE.issuperset(map(str, objectives))
        return data | {"pruner": "front" if is_learned and is_foreseen else "none"}

    @field_validator("objectives")
    @classmethod
    def _known_objectives(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in list_objectives():
                raise ValueError(describe_unknown("objective", name, list_objectives()))
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"{', '.join(twice)} is named twice; name each objective once")
        return names

    @field_validator("deliberate")
    @classmethod
    def _known_deliberate(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        known = {*cls.model_fields, *list_fields(cls), *config_keys()}
        for key in keys:
            if key not in known and not key.startswith(PREFIX):
                raise ValueError(describe_unknown("key", key, known))
        return keys

    @field_validator("base", mode="before")
    @classmethod
    def _flat_base(cls, base: Any) -> Any:
        return replace_keys({}, flatten_table(base)) if isinstance(base, dict) else base

    @field_validator("space", mode="before")
    @classmethod
    def _flat_space(cls, space: Any) -> Any:
        return flatten_space(space) if isinstance(space, dict) else space

    @model_validator(mode="after")
    def _pruner_can_judge(self) -> "StudySpec":
        unforeseeable = [name for name in self.objectives if name not in FORESEEABLE]
        if self.pruner == "front" and unforeseeable:
            raise ValueError(
                f"pruner: 'front' cannot foresee {', '.join(unforeseeable)} while a trial runs, only "
                f"{', '.join(sorted(FORESEEABLE))}; choose other objectives, or pruner = 'none'"
            )
        return self

    @model_validator(mode="after")
    def _script_is_asked_for_what_it_can_do(self) -> "StudySpec":
        given = self.given_keys
        if self.script is None:
            if own := [key for key in given if key.startswith(PREFIX)]:
                raise ValueError(f"{own[0]}: it is a value of a script's own; name its command in [script]")
            return self
        if not any(is_batch_key(key) for key in given):
            raise ValueError("script: give batch.micro or batch.global in [space] or [base]: every answer is about it")
        self.command(self.corners.first, "")
        other = [key for key in given if key.startswith("rules.") or key == "batch.schedule"]
        if any(config.batch.is_auto for config in self.corners.of("batch")):
            other.append("batch.micro = 'auto'")
        if other:
            raise ValueError(f"{other[0]}: a script carries out no such rule; leave it out")
        qualities = {"val_accuracy", "val_loss", "quality", "train_accuracy", "generalization_gap"}
        if missing := (qualities - {self.quality.column}).intersection(self.objectives):
            raise ValueError(
                f"objectives: the script reports {self.script.metric}, not {min(missing)}; "
                f"write {self.quality.column!r} instead"
            )
        return self

    @model_validator(mode="after")
    def _first_points_are_of_the_space(self) -> "StudySpec":
        for number, point in enumerate(self.first, start=1):
            if complaint := explain_point(point, self.space):
                raise ValueError(f"first: point {number}: {complaint}")
            self.config(point)
        return self

    @model_validator(mode="after")
    def _images_are_fixed(self) -> "StudySpec":
        if swept := [path for path in _NOT_SWEPT if path in self.space]:
            raise ValueError(
                f"space: {', '.join(swept)} cannot be swept, because results on different images are not comparable; "
                "run a study for each and compare them with `sweep compare`"
            )
        return self

    @model_validator(mode="after")
    def _values_are_valid(self) -> "StudySpec":
        if "seed" in self.base or ("seed" in self.space and (self.sampler != "grid" or self.confirm.most_trials)):
            raise ValueError(
                "seed: the seed is the study's own key and cannot be in [base] or [space]; write it above them. A grid "
                "that confirms nothing (confirm.max_configurations = 0) may have it in [space]"
            )
        if self.sampler == "grid":
            endless = [path for path, parameter in self.space.items() if parameter.grid_values is None]
            if endless:
                raise ValueError(f"sampler: a grid cannot hold {', '.join(endless)}; give choice, int or log2")
        self._possible({}, "base")
        for path, parameter in self.space.items():
            for rival in find_rivals(path):
                if rival in self.base or rival in self.space:
                    raise ValueError(f"space.{path}: {rival} is set too, and each replaces the other; keep one")
            for value in parameter.extremes():
                recorded = flatten_config(self._possible({path: value}, f"space.{path}"))[path]
                if isinstance(value, str) and recorded != value:
                    raise ValueError(
                        f"space.{path}: {value!r} is recorded as {recorded!r} and a unit; sweep the number, and set "
                        f"{path}_unit in [base]"
                    )
        targets = (each.budget.target for each in self.list_corners() if each.budget.target is not None)
        if self.quality.unit == "fraction" and (wrong := [each for each in targets if not 0 < each <= 1]):
            raise ValueError(f"budget.target = {wrong[0]:g}: {self.quality.name} is a share, above 0 and at most 1")
        return self

    def _possible(self, values: dict[str, Any], where: str) -> TrialConfig:
        # alone, so that an error names its key; or, where a key requires another that is swept, with that one
        try:
            return build_config(replace_keys(self.base, values), where)
        except InputError as error:
            try:
                return build_config(replace_keys(self.base, self.corners.anywhere | values), where)
            except InputError:
                raise error from None

    def _repr_html_(self) -> str:
        return str(resolve("reports.notebook:render_study")(self))  # a notebook shows it

    @cached_property
    def corners(self) -> SpaceCorners:
        """The corners of the space; some rules hold between two keys."""
        return SpaceCorners(self.space, self.config)

    def __copy__(self) -> Self:
        # a copy may get another base or space
        copied = super().__copy__()
        copied.__dict__.pop("corners", None)
        return copied

    def list_corners(self) -> list[TrialConfig]:
        """The configurations at the first corners of the whole space, in the order of :meth:`SpaceCorners.points`."""
        return [self.corners.at(point) for point in self.corners.points()]

    @property
    def quality(self) -> Quality:
        """What the study improves beside its costs."""
        return self.script.quality if self.script else IMAGES

    def metric(self, name: str) -> Metric:
        """The metric of that name in this study."""
        return find_metric(name, self.quality)

    @property
    def tolerance(self) -> float | None:
        """The difference of the quality that does not matter; None where the spread between seeds decides it."""
        declared = self.answer.tolerance
        return (declared.quality or self.quality.usual_tolerance) if self.script else declared.accuracy

    def command(self, config: TrialConfig, folder: str) -> dict[str, Any]:
        """What the script of the study is to run with ``config``: the fields of
        :class:`sweep.records.messages.ScriptCommand`. Raises ``InputError``: a place of its command has no value."""
        script, values = self.script, read_placed(config, self.given_keys)
        assert script is not None
        try:
            arguments, environment = script.fill(values, folder)
        except ValueError as error:
            raise InputError(f"study {self.name}: script: {error}.") from None
        placed = script.placeholders | ({"budget.samples"} if "budget.steps" in script.placeholders else set())
        return {
            "arguments": arguments, "environment": environment, "folder": script.folder, "metric": script.metric,
            "sign": self.quality.sign,
            "values": values, "keys": self.given_keys, "placed": tuple(sorted(placed)),
        }  # fmt: skip

    @property
    def given_keys(self) -> tuple[str, ...]:
        """The configuration keys that the study names."""
        return tuple(dict.fromkeys((*self.base, *self.space)))

    def recorded_values(self, config: TrialConfig) -> dict[str, Scalar]:
        """The values of ``config`` as a record has them: a script has none but those that it is given."""
        return read_asked(config, self.given_keys) if self.script else flatten_config(config)

    @property
    def price(self) -> Price | None:
        """What an hour costs; None where the study does not name it."""
        return None if self.price_per_hour is None else Price(self.price_per_hour, self.currency)

    @property
    def largest_world_size(self) -> int:
        """The most ranks that one of its trials has."""
        path = "distributed.world_size"
        sizes: Sequence[Any] = self.space[path].extremes() if path in self.space else (self.base.get(path, 1),)
        return int(max(sizes))

    def config(self, values: dict[str, Any], seed: int | None = None) -> TrialConfig:
        """The configuration at a point of the space; ``seed`` defaults to the point's, or the study's. Of points whose
        trainings are identical all have the same."""
        changes = {"seed": self.seed} | values | ({} if seed is None else {"seed": seed})
        config = build_config(replace_keys(self.base, changes), f"study {self.name}")
        flat, sizes = flatten_config(config), self.space.get("batch.micro")
        # not the values that act themselves: what is recorded has to be a point of the space
        equal = {path: self.corners.anywhere[path] for path in self.space if not has_effect(path, flat)}
        if sizes and (most := normalize_values(flat)["batch.micro"]) != flat["batch.micro"]:
            numbers: list[Any] = [size for size in sizes.grid_values or () if size != "auto"]
            equal["batch.micro"] = min((size for size in numbers if size >= most), default=flat["batch.micro"])
        if all(flat[path] == value for path, value in equal.items()):
            return config
        return build_config(replace_keys(self.base, changes | equal), f"study {self.name}")

    def list_points(self) -> list[dict[str, Any]] | None:
        """The points of a small grid whose trainings differ, in the order in which they are tried; None where the space
        is large."""
        size = count_grid_points(self.space)
        if size is None or size > _SMALL_GRID:
            return None
        points = [pick_grid_point(self.space, index) for index in range(size)]
        return [point for point in points if point.items() <= flatten_config(self.config(point)).items()]


def choose_study_name(path: Path) -> str:
    """The name of the study that the file or folder ``path`` is to hold."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", path.stem)
    return (name if name[:1].isalnum() else f"study{name}")[:64]


def is_batch_key(path: str) -> bool:
    return path.startswith("batch.")


def describe_cost(spec: StudySpec) -> str:
    """How much training a study requires; how long that takes depends on the device."""
    budgets = [config.apply_rules().budget for config in spec.list_corners()]
    budget = budgets[0]
    if budget.target is not None:
        each = f"at most {max(item.max_epochs for item in budgets):g} epochs"
    else:
        budget = max(budgets, key=lambda item: item.epochs or 0)  # by rule a larger batch has more
        amounts = {name: getattr(budget, name) for name in ("epochs", "steps", "samples", "seconds")}
        each = next(f"{value:g} {name}" for name, value in amounts.items() if value is not None)
    search = f"{spec.trials} trainings of {each}"
    return f"{search}, then {spec.confirm.describe_limits(spec.trials)}" if spec.confirm.most_trials else search
