"""The frames of one study or several as one object."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import pandas as pd

from sweep.config.commands import StudyCommands, StudyOrigin, find_study_commands, name_foreign_commands
from sweep.config.study import StudySpec
from sweep.config.tables.entries import resolve
from sweep.config.trial_config import flatten_table
from sweep.config.units import format_count
from sweep.records.correct_images import FindCorrect
from sweep.records.data_summary import DataSummary
from sweep.records.frames.frame_columns import QUEUE_COLUMNS, build_frame
from sweep.records.frames.record_source import RecordSource
from sweep.records.store.reading import spec_from_json
from sweep.records.study_inputs import StudyInputs


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The records of one study or several. Columns are declared in
    :mod:`sweep.records.frames.frame_columns`."""

    trials: pd.DataFrame
    attempts: pd.DataFrame
    probes: pd.DataFrame
    studies: pd.DataFrame  # study, created_at, spec and inputs as JSON
    environment_rows: pd.DataFrame  # study, environment_digest, environment as JSON
    queue: pd.DataFrame = field(default_factory=partial(build_frame, QUEUE_COLUMNS, {}, 0))
    evaluations: pd.DataFrame | None = None  # None unless requested
    correct_images: pd.DataFrame | None = None  # study, number, correct_images as text; None unless requested
    find_correct: FindCorrect | None = field(default=None, repr=False, compare=False)  # reads those of given trials
    place: str = ""  # the source, without a password
    is_exported: bool = False  # files that `sweep export` wrote, in which no study can continue
    source: RecordSource | None = None  # where another program wrote the records

    @cached_property
    def specs(self) -> dict[str, StudySpec]:
        """The recorded specification of each study. Raises ``InputError`` when this version cannot read one."""
        rows = zip(self.studies["study"], self.studies["spec"], strict=True)
        return {name: spec_from_json(spec, f"study {name}") for name, spec in rows}

    @property
    def spec(self) -> StudySpec | None:
        """The specification where there is exactly one study."""
        return next(iter(self.specs.values())) if len(self.specs) == 1 else None

    @cached_property
    def inputs(self) -> dict[str, StudyInputs]:
        """The images and the plug-in that the trials of each study read.

        Raises ``InputError`` where that is damaged."""
        rows = zip(self.studies["study"], self.studies["inputs"], strict=True)
        return {name: StudyInputs.from_json(text, f"study {name}") for name, text in rows}

    @property
    def data(self) -> DataSummary | None:
        """The images as they were counted, where there is exactly one study and its run counted them."""
        return next(iter(self.inputs.values())).data if len(self.inputs) == 1 else None

    @property
    def plugin(self) -> str:
        """The plug-in's file as the user gave it, otherwise its name; "" where no study has one, or several
        studies have several."""
        files = {each.plugin_file for each in self.inputs.values() if each.plugin_file}
        return files.pop() if len(files) == 1 else ""

    @property
    def origin(self) -> StudyOrigin:
        """What the user typed to run the study, where there is exactly one and that is on record."""
        return next(iter(self.inputs.values())).origin if len(self.inputs) == 1 else StudyOrigin()

    def find_commands(self, name: str) -> StudyCommands:
        """Commands about the study ``name`` of these records."""
        if self.source is not None:
            return name_foreign_commands(name, self.source.file, self.source.map_file)
        commands = find_study_commands(name, self.spec, self.place, self.origin, self.plugin)
        return replace(commands, export=self.place) if self.is_exported else commands

    @cached_property
    def environments(self) -> pd.DataFrame:
        """``study``, ``environment_digest`` and a column of text for every fact recorded, by dotted name."""
        contents = [flatten_table(json.loads(content)) for content in self.environment_rows["environment"]]
        texts = [{name: str(fact) for name, fact in content.items()} for content in contents]
        facts = pd.DataFrame(texts, columns=sorted(set().union(*texts)), dtype="str")
        facts = facts.set_index(self.environment_rows.index)
        return pd.concat([self.environment_rows.drop(columns="environment"), facts], axis=1)

    def __repr__(self) -> str:
        return f"Frames({', '.join(self.studies['study'])}: {format_count(len(self.trials), 'trial')})"

    def _repr_html_(self) -> str:
        return str(resolve("reports.notebook:render_frames")(self))  # a notebook shows it
