"""The content key: what changes it, what does not."""

import re
import subprocess
import sys
from typing import Any

import pytest

from sweep.config.trial_config import TrialConfig, build_config, flatten_config
from sweep.records import content_key
from sweep.records.content_key import code_digest, trial_key


def _key(**values: Any) -> str:
    return trial_key(build_config(values, "test"), "data", "code", "2.13.0")


CHANGES = [
    {"seed": 1}, {"optimizer.lr": 0.2}, {"batch.micro": 32}, {"batch.global": 64}, {"data.subset": 10},
    {"budget.steps": 5}, {"precision.dtype": "bf16"}, {"model.name": "vit_micro"}, {"data.placement": "host"},
]  # fmt: skip


def test_whatever_changes_the_training_changes_the_key() -> None:
    found = [_key(), *(_key(**change) for change in CHANGES)]
    found += [trial_key(TrialConfig(), *rest) for rest in [("x", "code", "2.13.0"), ("data", "x", "2.13.0")]]
    found.append(trial_key(TrialConfig(), "data", "code", "2.14.0"))
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in found)


def test_defaults_in_writing_and_the_place_of_the_data_do_not() -> None:
    written = {path: value for path, value in flatten_config(TrialConfig()).items() if value is not None}
    assert _key(**written) == _key() == _key(**{"data.root": "/somewhere/else"})


def test_a_field_that_is_added_with_its_default_leaves_older_keys_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _key(**{"optimizer.lr": 0.3})
    with_one_more = dict(flatten_config(TrialConfig())) | {"model.new": "old behavior"}
    monkeypatch.setattr(content_key, "default_settings", lambda: with_one_more)
    extended = {"model.new": "old behavior"}
    monkeypatch.setattr(content_key, "flatten_config", lambda config: flatten_config(config) | extended)
    assert _key(**{"optimizer.lr": 0.3}) == before


def test_keys_are_the_same_in_another_process_and_torch_is_not_imported() -> None:
    code = (
        "import sys; from sweep.records.content_key import *; from sweep.config.trial_config import TrialConfig;"
        "print(trial_key(TrialConfig(), 'data', 'code', '2.13.0'), code_digest(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [_key(), code_digest(), "False"]
