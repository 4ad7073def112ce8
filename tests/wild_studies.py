"""Exports of an earlier schema, as `sweep import` takes them today. The files lie beside the checkout, so that tests of
them are skipped where they are missing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import build_config, config_keys
from sweep.probing.shape import digest_trial_shape
from sweep.records.files import cells_of, read_export
from sweep.records.frames import FRAME_PARTS, Frames
from sweep.records.records import CONFIG_COLUMNS, digest_shape

WILD = Path(__file__).parents[2] / "shared" / "data" / "wild"
STUDIES = ("study_kill", "study_vit_acc")
_REMOVED_FLAGS = {"probed_time", "undisturbed_time", "slower_than_alone"}  # of times that were not as measured


def copy_wild_study(name: str, folder: Path) -> Path:
    """An export of today in ``folder`` of the earlier one ``name``; skips the test where that is missing."""
    source = WILD / name
    if not (source / "export.json").is_file():
        pytest.skip(f"the export {source} is missing")
    folder.mkdir(parents=True)
    tables = {part.file: pd.read_parquet(source / f"{part.file}.parquet") for part in FRAME_PARTS}
    tables["studies"]["spec"] = [_convert_spec(json.loads(text)) for text in tables["studies"]["spec"]]
    trials = _restore_times(_convert_rules(tables["trials"]))
    tables["trials"] = trials.assign(shape_digest=_list_shape_digests(trials))
    shapes = [_drop_keys(json.loads(text)) for text in tables["probes"]["shape"]]
    texts = [json.dumps(shape) for shape in shapes]
    tables["probes"] = tables["probes"].assign(shape=texts, shape_digest=[digest_shape(text) for text in texts])
    for part in FRAME_PARTS:
        kept = [column.name for column in part.columns if column.name in tables[part.file]]
        tables[part.file][kept].to_parquet(folder / f"{part.file}.parquet", index=False)
    manifest = json.loads((source / "export.json").read_text("utf-8"))
    manifest["num_rows"] = {part.file: len(tables[part.file]) for part in FRAME_PARTS}
    (folder / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def load_wild_study(name: str, folder: Path) -> Frames:
    """The frames of :func:`copy_wild_study`, with the evaluations."""
    return read_export(copy_wild_study(name, folder), left_out=())


def _convert_spec(spec: dict[str, Any]) -> str:
    kept = {field: value for field, value in spec.items() if field in StudySpec.model_fields}
    for part in ("base", "space"):
        kept[part] = _drop_keys({_rename_key(key): value for key, value in spec[part].items()})
    return build_study(kept, "an earlier export").model_dump_json()


def _rename_key(key: str) -> str:
    """`optimizer.lr_rule` is `rules.lr` today."""
    section, _, name = key.partition(".")
    if name == "reference_batch" or (name.endswith("_rule") and section != "rules"):
        return f"rules.{name.removesuffix('_rule')}"
    return key


def _drop_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in config_keys()}


def _convert_rules(trials: pd.DataFrame) -> pd.DataFrame:
    """A rule was "power" with the number beside it; now the number is the rule."""
    named = trials.rename(
        columns={name: f"config.{_rename_key(name.removeprefix('config.'))}" for name in trials if "config." in name}
    )
    for power in [name for name in trials if name.startswith("config.") and name.endswith("_power")]:
        rule = f"config.{_rename_key(power.removeprefix('config.').replace('_power', '_rule'))}"
        assert not (named[rule] == "power").any(), f"{rule} requires the number of {power}"
    return named


def _restore_times(trials: pd.DataFrame) -> pd.DataFrame:
    """What the clock measured, where the time of a probe had taken its place."""
    measured, used = trials["measured_train_seconds"], trials["train_seconds"]
    ratio = (measured / used).fillna(1.0)
    kept = [[flag for flag in text.split(",") if flag not in _REMOVED_FLAGS] for text in trials["quality_flags"]]
    return trials.assign(
        train_seconds=used * ratio,
        images_per_second=trials["images_per_second"] / ratio,
        total_seconds=trials["total_seconds"] + np.nan_to_num(measured - used),
        quality_flags=[",".join(flags) for flags in kept],
    )


def _list_shape_digests(trials: pd.DataFrame) -> list[str]:
    known = [column for column in CONFIG_COLUMNS if column.name in trials]
    rows = zip(*(cells_of(trials[column.name]) for column in known), strict=True)
    configs = [{column.path: column.from_cell(cell) for column, cell in zip(known, row, strict=True)} for row in rows]
    return [digest_trial_shape(build_config(values, "an earlier export")) for values in configs]
