"""A study: the question, the base configuration, the space, the objectives and the budget."""

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from sweep.config.durations import Seconds
from sweep.config.errors import InputError, describe_unknown
from sweep.config.fields import Section, list_fields
from sweep.config.metrics import FORESEEABLE, list_objectives
from sweep.config.space import Space, SpaceCorners, explain_point, flatten_space
from sweep.config.study_sections import FEWEST_SEEDS as FEWEST_SEEDS
from sweep.config.study_sections import TRIAL_SECONDS as TRIAL_SECONDS
from sweep.config.study_sections import AnswerRules as AnswerRules
from sweep.config.study_sections import Confirm as Confirm
from sweep.config.study_sections import ConfirmTime as ConfirmTime
from sweep.config.study_sections import Price as Price
from sweep.config.study_sections import Tolerance as Tolerance
from sweep.config.tables.entries import resolve
from sweep.config.trial_config import (
    TrialConfig,
    build_config,
    config_keys,
    find_rivals,
    flatten_config,
    flatten_table,
    replace_keys,
)

# A study's name is a folder, which may be copied to any system.
WINDOWS_RESERVED_NAMES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)))
)
_FIXED_DESIGNS = ("qmc", "random", "grid")  # samplers whose points do not depend on results
_MAX_CORNERS = 64  # that are looked at: there may be billions
_NOT_SWEPT = ("data.name", "data.root", "data.on_bad_image", "data.validation_share")  # they choose the images


def _no_device(name: str) -> str:
    if name.lower() in WINDOWS_RESERVED_NAMES:
        raise ValueError("it is the name of a device on Windows, where no folder can have it; choose another")
    return name


class StudySpec(Section):
    """A validated study. Read one with :func:`sweep.config.study_file.load_study`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"), AfterValidator(_no_device)] = Field(
        description="the folder of the records under the root"
    )
    question: str = Field("", description="what the study is to answer; it heads the report")
    seed: Annotated[int, Field(ge=0, lt=2**30)] = Field(
        0, description="search trials use it, confirming trials the seeds after it"
    )
    trials: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20,
        description="search trials, without `cancelled` and `not_fitting` ones and crashed ones that are tried again",
    )
    timeout: Seconds | None = Field(
        None, description='time limit of one `sweep run`, in seconds or as `"90s"`, `"10m"`, `"2h"`, `"1d"`'
    )
    search_timeout: Seconds | None = Field(
        None, description="time limit of the search in one `sweep run`, in the same forms; confirming begins then"
    )
    trial_timeout: Seconds | None = Field(
        None, description="time limit of one trial, in the same forms; a slower one ends as `timed_out`"
    )
    stall_timeout: Seconds = Field(
        600.0,
        description="time limit, in the same forms, between two messages of a trial; a trial that exceeds it is "
        "stopped and retried, three times at most; set it longer than the longest compile, step or checkpoint",
    )
    objectives: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        ("val_accuracy", "train_seconds", "peak_memory_bytes"),
        description="metrics to trade off, of those of which higher or lower is better",
    )
    sampler: Literal["tpe", "nsga2", "qmc", "random", "grid", "gp", "cost_aware"] = Field(
        "cost_aware", description="where the next configuration comes from"
    )
    pruner: Literal["none", "front"] = Field(
        "front",
        description="early-stopping rule; absent with a `sampler` that does not learn (`qmc`, `random`, `grid`), or "
        f"with objectives other than {', '.join(f'`{name}`' for name in sorted(FORESEEABLE))}: `none`",
    )
    retune: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="keys that are searched anew for each combination of the `batch.*` parameters; they take turns"
    )
    first: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = Field(
        (), description="points that are tried first, each a table with a value for every key of the space"
    )
    deliberate: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="keys whose values are chosen on purpose: no advice on them is given"
    )
    price_per_hour: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="what an hour of all that the study runs on costs; prices are then named beside times",
    )
    currency: Annotated[str, Field(max_length=16)] = Field("", description='text behind a price, such as `"EUR"`')
    confirm: Confirm = Confirm()
    answer: AnswerRules = AnswerRules()
    base: dict[str, Any] = Field(default_factory=dict, description="any configuration key: what stays fixed")
    space: Space = Field(default_factory=dict, description="any configuration key: what varies, and over what")

    @model_validator(mode="before")
    @classmethod
    def _fill_pruner(cls, data: Any) -> Any:
        # here and not where it is used, so that the record has the rule that stopped trials; a design is carried out
        if not isinstance(data, dict) or "pruner" in data:
            return data
        objectives = data.get("objectives", cls.model_fields["objectives"].default)
        is_learned = data.get("sampler") not in _FIXED_DESIGNS
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
            if key not in known:
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
    def _retuned_keys_are_searched(self) -> "StudySpec":
        if not self.retune:
            return self
        rest = [path for path in self.space if not is_batch_key(path)]
        if unknown := [path for path in self.retune if path not in rest]:
            raise ValueError(
                f"retune: {', '.join(unknown)} is no parameter of the space outside batch.*; add it to [space], or "
                "leave it out of retune"
            )
        if left_out := [path for path in rest if path not in self.retune]:
            raise ValueError(
                f"retune: the space has {', '.join(left_out)} too; name it, so that it is searched for each batch "
                "size, or fix it in [base]"
            )
        endless = [path for path, item in self.space.items() if is_batch_key(path) and item.grid_values is None]
        if endless or len(rest) == len(self.space):
            raise ValueError(
                f"retune: it requires batch sizes that can be counted, not {', '.join(endless) or 'none'}; "
                "sweep batch.micro or batch.accumulation over log2, int or choice"
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
        self.list_corners()
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
        return [self.corners.at(point) for point in itertools.islice(self.corners.points(), _MAX_CORNERS)]

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
        """The configuration at a point of the space; ``seed`` defaults to that of the point, or the study's."""
        changes = {"seed": self.seed} | values | ({} if seed is None else {"seed": seed})
        return build_config(replace_keys(self.base, changes), f"study {self.name}")


def is_batch_key(path: str) -> bool:
    return path.startswith("batch.")


def describe_cost(spec: StudySpec) -> str:
    """How much training a study requires; how long that takes depends on the device."""
    budgets = [config.apply_rules().budget for config in spec.list_corners()]
    budget = budgets[0]
    if budget.target_accuracy is not None:
        each = f"at most {max(item.max_epochs for item in budgets):g} epochs"
    else:
        budget = max(budgets, key=lambda item: item.epochs or 0)  # by rule a larger batch has more
        amounts = {name: getattr(budget, name) for name in ("epochs", "steps", "samples", "seconds")}
        each = next(f"{value:g} {name}" for name, value in amounts.items() if value is not None)
    search = f"{spec.trials} trainings of {each}"
    return f"{search}, then {spec.confirm.describe_limits()}" if spec.confirm.most_trials else search
