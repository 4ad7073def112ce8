"""What is kept of a trial besides its numbers: the images that it got right, and what trials of a study read."""

import base64
import json
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from records_factory import add_trials, make_config, make_ending, make_store
from sqlalchemy import text
from training_factory import train_whole

from sweep.cli.check import check_trials
from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError
from sweep.config.trial import build_config
from sweep.records.files import export_frames, import_records
from sweep.records.inputs import DataSummary, Ignored, StudyInputs
from sweep.records.loading import load_frames
from sweep.records.messages import TrialTask
from sweep.records.records import MAX_IMAGES, decode_correct, encode_correct
from sweep.records.store import Store, open_store
from sweep.training.finish import describe_correct
from sweep.training.ranks import run_ranks

TINY = {"data.subset": 64, "budget.epochs": 2.0, "batch.micro": 32}


@pytest.mark.parametrize("num_images", [1, 7, 8, 9, 228, MAX_IMAGES])
def test_bits_come_back(num_images: int) -> None:
    correct = np.random.default_rng(num_images).random(num_images) < 0.9
    text = encode_correct(correct)
    np.testing.assert_array_equal(decode_correct(text), correct)
    assert len(text) < 40_000
    assert encode_correct(np.ones(MAX_IMAGES + 1, dtype=np.bool_)) == ""  # of a very large split nothing is kept


BOMB = base64.b64encode(zlib.compress(bytes(10_000_000))).decode()


@pytest.mark.parametrize(
    "text", ["", "8", "x:", "0:", "-8:eJw", "9999999999:eJw", "8:%%%", "8:AAAA", f"8:{BOMB}", "16:eJz7DwABAQEA"]
)
def test_damaged_bits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="images"):
        decode_correct(text)


def test_a_trial_ends_with_the_images_of_its_last_evaluation() -> None:
    curve, ending = train_whole(build_config(TINY, "test"))
    correct = decode_correct(ending.correct_images)
    assert len(correct) == 228  # of digits
    assert correct.mean() == pytest.approx(ending.measurements["val_accuracy"])
    assert len({message.val_accuracy for message in curve}) > 1  # not those of an earlier one


@pytest.mark.wide
def test_two_ranks_gather_their_images_in_the_order_of_the_split() -> None:
    values = {**TINY, "precision.dtype": "fp64", "model.norm": "group", "budget.epochs": 1.0}
    _, alone = train_whole(build_config(values, "test"))
    both = {**values, "batch.micro": 16, "distributed.world_size": 2}
    *_, ending = run_ranks(TrialTask(number=0, config=build_config(both, "test"), device="cpu"))
    assert ending.correct_images == alone.correct_images


class SecondOfTwo:
    """The second of two ranks, of which the first got its one image right."""

    size = 2

    def gather(self, shares: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.ones_like(shares), shares])


def test_a_rank_without_an_image_has_a_part_in_the_gathering() -> None:
    text = describe_correct([], SecondOfTwo(), 1)
    np.testing.assert_array_equal(decode_correct(text), [True])


def test_only_the_trials_that_are_asked_for_are_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete"])  # without
    rng = np.random.default_rng(0)
    known = {number: rng.random(20) < 0.8 for number in (1, 2, 3)}
    for number, correct in known.items():
        store.add_trial("s", number, "search", make_config(number), f"key{number}")
        store.finish_trial("s", number, make_ending(number, correct_images=encode_correct(correct)))
    frames = load_frames(tmp_path)
    assert "correct_images" not in frames.trials
    assert frames.correct_images is None
    assert frames.find_correct is not None
    found = frames.find_correct("s", [0, 1, 3])
    assert found.keys() == {1, 3}
    np.testing.assert_array_equal(found[3], known[3])
    reusable = store.find_by_key("key2")
    assert reusable is not None
    assert reusable.ending.correct_images == encode_correct(known[2])
    store.close()


def test_damaged_images_are_refused_where_they_are_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.add_trial("s", 0, "search", make_config(0), "key0")
    store.finish_trial("s", 0, make_ending(0, correct_images="12:torn"))
    store.close()
    frames = load_frames(tmp_path)
    assert frames.find_correct is not None
    with pytest.raises(InputError, match="damaged"):
        frames.find_correct("s", [0])
    with pytest.raises(InputError, match="correct_images"):
        load_frames(tmp_path, correct_images=True)


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
CORRECT = encode_correct(np.arange(20) % 3 > 0)


def fill(store: Store) -> None:
    add_trials(store, ["complete"])
    store.add_trial("s", 1, "search", make_config(1), "key1")
    store.finish_trial("s", 1, make_ending(1, correct_images=CORRECT))
    store.record_inputs("s", INPUTS)


def export(place: Path) -> Path:
    with closing(make_store(place / "a" / "study.sqlite")) as store:
        fill(store)
    export_frames(load_frames(place / "a", evaluations=True, correct_images=True), place / "out")
    return place / "out"


def test_exports_and_imports_keep_what_trials_read(tmp_path: Path) -> None:
    folder = export(tmp_path)
    exported = load_frames(folder)
    assert exported.data == DATA
    assert exported.find_correct is not None
    np.testing.assert_array_equal(exported.find_correct("s", [0, 1])[1], decode_correct(CORRECT))
    with closing(open_store(tmp_path / "b" / "study.sqlite", create=True)) as copy:
        import_records(folder, copy)
        assert copy.load_inputs("s") == INPUTS
    frames = load_frames(tmp_path / "b", correct_images=True)
    assert frames.data == DATA
    assert frames.correct_images is not None
    assert frames.correct_images["correct_images"].tolist() == [CORRECT]
    assert frames.inputs == {"s": INPUTS}
    assert list(frames.data.classes) == list(DATA.classes)  # their order is that of the labels


def test_the_check_of_a_study_names_what_to_know_of_its_data(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "study.sqlite")) as store:
        fill(store)
    counted, note = (check for check in check_trials(load_frames(tmp_path)) if check.name == "data")
    assert (counted.status, "14 training, 3 validation and 3 test images" in counted.found) == ("ok", True)
    assert (note.status, note.found) == ("note", "1 image is a copy")


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
    path = folder / "studies.parquet"
    pd.read_parquet(path).assign(inputs=[DAMAGED[damage]]).to_parquet(path, index=False)
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
