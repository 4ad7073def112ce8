"""What a study asks for and cannot have is refused before anything runs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import build_config
from sweep.search.session import check_numerics
from sweep.training.data.sources import check_data, load_splits


def check(base: dict[str, object], space: dict[str, object], device_type: str = "cpu") -> StudySpec:
    table = {"name": "s", "question": "?", "objectives": ["val_accuracy"], "trials": 1, "base": base, "space": space}
    spec = build_study(table, "test")
    check_numerics(spec, device_type)
    return spec


def test_a_precision_that_the_device_lacks() -> None:
    swept = {"precision.dtype": {"choice": ["fp32", "tf32"]}}
    with pytest.raises(InputError, match="tf32"):
        check({}, swept)
    check({}, swept, "cuda")
    with pytest.raises(InputError, match="cuda_graphs"):
        check({"precision.cuda_graphs": True}, {"batch.micro": {"choice": [16, 32]}})


def test_a_norm_over_all_ranks_wants_gpus() -> None:
    swept = {"model.norm": {"choice": ["batch", "sync"]}, "distributed.world_size": {"choice": [1, 2]}}
    with pytest.raises(InputError, match=r"sync.*over several ranks requires NVIDIA GPUs"):
        check({}, swept)
    check({}, swept, "cuda")
    check({"model.norm": "sync"}, {"batch.micro": {"choice": [16, 32]}})  # alone it is batch norm


def test_keys_that_want_others_beside_them_may_have_those_swept() -> None:
    swept = {"batch.global": {"choice": [64, 128]}, "precision.dtype": {"choice": ["fp32"]}}
    spec = check({"batch.micro": "auto"}, swept)
    assert [each.global_batch_size for each in spec.list_corners()] == [64, 128]


@pytest.mark.parametrize("parts", [[""], ["train", "test"], ["train", "val", "test"]])
def test_a_subset_larger_than_the_folder(tmp_path: Path, parts: list[str]) -> None:
    for part in parts:
        for label in ("cat", "dog"):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for index in range(11):
                Image.fromarray(np.full((8, 8, 3), index, dtype=np.uint8)).save(folder / f"{index}.png")
    values = {"data.name": "imagefolder", "data.root": str(tmp_path)}
    count = len(load_splits(build_config(values, "test").data).train)
    check_data(build_config(values | {"data.subset": count}, "test"))
    with pytest.raises(InputError, match=f"has {count} images"):
        check_data(build_config(values | {"data.subset": count + 1}, "test"))
