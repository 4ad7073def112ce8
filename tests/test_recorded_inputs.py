"""What trials read is kept with a study: through exports and imports, and from records of before or of others."""

import json
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from records_factory import add_trials, make_spec, make_store
from sqlalchemy import text

from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError
from sweep.records.files import export_frames, import_records
from sweep.records.inputs import DataSummary, Ignored, StudyInputs
from sweep.records.loading import load_frames
from sweep.records.store import Store, open_store

DATA = DataSummary(
    name="imagefolder", root="-photos", num_train=14, num_val=3, num_test=3, num_ignored=7,
    classes={"o\udcffdd": {"train": 7, "val": 2, "test": 1}, '=cmd|"b",\n': {"train": 7, "val": 1, "test": 2}},
    held_out="validation: valid/", sizes={"8 x 8": 19, "9 x 8": 1}, modes={"RGB": 20},
    ignored=(Ignored(reason="hidden", num_files=7, examples=("a/.0.png", "b/.1.png")),),
    notes=("1 image is a copy",), digest="0123456789abcdef" * 2,
)  # fmt: skip
ORIGIN = StudyOrigin(
    argument="my s.toml", changes={"optimizer.lr": 0.1}, plugin="plugins/mine.py", options=("--on", "ray.toml")
)
INPUTS = StudyInputs(data=DATA, plugin={"mine.py": "ab" * 32}, origin=ORIGIN)


def fill(store: Store, inputs: StudyInputs = INPUTS) -> None:
    add_trials(store, ["complete"])
    store.record_inputs("s", inputs)


def export(place: Path, inputs: StudyInputs = INPUTS) -> Path:
    with closing(make_store(place / "a" / "study.sqlite")) as store:
        fill(store, inputs)
    export_frames(load_frames(place / "a", evaluations=True, correct_images=True), place / "out")
    return place / "out"


def change_export(folder: Path, inputs: str) -> None:
    path = folder / "studies.parquet"
    pd.read_parquet(path).assign(inputs=[inputs]).to_parquet(path, index=False)


def test_exports_and_imports_keep_what_trials_read(tmp_path: Path) -> None:
    folder = export(tmp_path)
    assert load_frames(folder).data == DATA
    with closing(open_store(tmp_path / "b" / "study.sqlite", create=True)) as copy:
        import_records(folder, copy)
        assert copy.load_inputs("s") == INPUTS
    frames = load_frames(tmp_path / "b")
    assert frames.data == DATA
    assert frames.inputs == {"s": INPUTS}
    assert list(frames.data.classes) == list(DATA.classes)  # their order is that of the labels


def test_frames_of_several_studies_have_the_data_of_each(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "study.sqlite")) as store:
        fill(store)
        store.create_study(make_spec("t"))
    frames = load_frames(tmp_path)
    assert frames.data is None
    assert {name: inputs.data for name, inputs in frames.inputs.items()} == {"s": DATA, "t": None}
    assert [load_frames(tmp_path, name).data for name in ("s", "t")] == [DATA, None]


def test_a_summary_of_a_later_version_is_read() -> None:
    document = json.loads(INPUTS.to_json())
    document["data"]["mean_color"] = [1, 2, 3]
    document["data"]["ignored"][0]["num_bytes"] = 12
    assert StudyInputs.from_json(json.dumps(document), "test") == INPUTS


DAMAGED = {
    "no JSON": "{", "no object": "[1]",
    "a count that is none": json.dumps({"data": {"name": "x", "num_train": "<b>many</b>"}}),
    "a class that is none": json.dumps({"data": {"name": "x", "classes": {"a": 3}}}),
    "a plug-in that is none": json.dumps({"plugin": ["mine.py"]}),
    "a name that is none": json.dumps({"data": {"name": {"a": "b"}}}), "too deep": '{"data":' * 90_000,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_inputs_are_refused(tmp_path: Path, damage: str) -> None:
    folder = export(tmp_path)
    change_export(folder, DAMAGED[damage])
    with pytest.raises(InputError, match=r"out.*damaged"):
        load_frames(folder)
    with closing(open_store(tmp_path / "b" / "study.sqlite", create=True)) as copy:
        with pytest.raises(InputError, match=r"out.*damaged"):
            import_records(folder, copy)
        assert copy.study_names() == []
    with closing(open_store(tmp_path / "a" / "study.sqlite")) as store:
        with store.database.transaction() as connection:
            connection.execute(text("UPDATE sweep_studies SET inputs = :inputs"), {"inputs": DAMAGED[damage]})
        with pytest.raises(InputError, match=r"study\.sqlite.*damaged"):
            store.load_inputs("s")
    with pytest.raises(InputError, match=r"a: .*damaged"):
        load_frames(tmp_path / "a")
