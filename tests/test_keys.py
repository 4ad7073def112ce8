"""The content key: what changes it, what does not."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sweep
from sweep.config.trial import TrialConfig, build_config, flatten_config
from sweep.records.inputs import PROBE, TRIAL, digest_code, digest_plugin, list_library_versions, trial_key
from sweep.records.messages import Ending
from sweep.search.session import keep_portable

PACKAGE = Path(sweep.__file__).parent
VERSIONS = {"torch": "2.13.0", "torchvision": "0.28.0", "numpy": "2.4.0"}


def _key(**values: Any) -> str:
    return trial_key(build_config(values, "test"), "data", "code", VERSIONS)


CHANGES = [
    {"seed": 1}, {"optimizer.lr": 0.2}, {"batch.micro": 32}, {"batch.global": 128}, {"data.subset": 10},
    {"budget.steps": 5}, {"precision.dtype": "bf16"}, {"model.name": "vit_micro"}, {"data.placement": "host"},
]  # fmt: skip


def test_whatever_changes_the_training_changes_the_key() -> None:
    found = [_key(), *(_key(**change) for change in CHANGES)]
    found += [trial_key(TrialConfig(), *rest, VERSIONS) for rest in [("x", "code"), ("data", "x")]]
    found += [trial_key(TrialConfig(), "data", "code", VERSIONS | {name: "9"}) for name in VERSIONS]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in found)


def test_defaults_in_writing_and_the_place_of_the_data_do_not() -> None:
    written = {path: value for path, value in flatten_config(TrialConfig()).items() if value is not None}
    assert _key(**written) == _key() == _key(**{"data.root": "/somewhere/else"})


def test_a_build_of_the_same_version_has_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.records.inputs.version", lambda name: {"torch": "2.13.0+cpu"}.get(name, "1.0"))
    assert list_library_versions() == {"torch": "2.13.0", "torchvision": "1.0", "numpy": "1.0"}


def test_keys_are_the_same_in_another_process_and_torch_is_not_imported() -> None:
    code = (
        "import sys; from sweep.records.inputs import *;"
        f"print(trial_key(TrialConfig(), 'data', 'code', {VERSIONS!r}), digest_code(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [_key(), digest_code(), "False"]


# File of the package -> a piece of it and what replaces it: rules, defaults, measurement, diagnostics, tables, models.
EDITS = {
    "a rule's formula": ("config/scaling.py", "math.sqrt(ratio)", "ratio**0.51"),
    "a default": ("config/sections.py", '"cosine"', '"linear"'),
    "a schedule": ("training/schedules.py", "return", "return 1.0 *"),
    "the noise scale": ("measurement/gradient_noise.py", "return", "return (1,) and"),
    "a model that a table names by text": ("training/models/vits.py", "return", "return (1,) and"),
    "a data set that a table names by text": ("training/data/published.py", "255 / 16", "255 / 17"),
}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "sweep", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_decides_a_result_changes_the_code_digest(edit: str, copied: Path) -> None:
    name, old, new = EDITS[edit]
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new))
    assert digest_code(package=copied) != digest_code()


def test_an_edit_of_what_decides_no_result_does_not(copied: Path) -> None:
    assert digest_code(package=copied) == digest_code()
    for name in ("search/tuner.py", "analysis/recommendation.py", "cli/app.py"):
        (copied / name).write_text("x = 1\n")
    for name in ("training/trial.py", "config/scaling.py"):
        text = (copied / name).read_text()
        ending = text.index('"""', text.index('"""') + 3)
        (copied / name).write_text("# a comment\n" + text[:ending] + " More." + text[ending:] + "\n\n# another\n")
    other = copied.parent / "again" / "sweep"  # a digest is kept by folder
    shutil.copytree(copied, other)
    assert digest_code(package=other) == digest_code()


@pytest.mark.wide
def test_the_digest_covers_every_module_that_a_training_imports() -> None:
    code = (
        "import sys; from sweep.records.messages import TrialTask; from sweep.training.trial import run_trial\n"
        "from sweep.config.trial import build_config\n"
        "config = build_config({'data.name': 'digits', 'budget.steps': 2, 'diagnostics.sharpness': True}, 't')\n"
        "list(run_trial(TrialTask(number=0, config=config, device='cpu')))\n"
        "print(*(getattr(m, '__file__', None) for n, m in sys.modules.items() if n.split('.')[0] == 'sweep'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used = {Path(name).relative_to(PACKAGE.parent).as_posix() for name in done.stdout.split()}
    from sweep.records import inputs as source_digest

    covered = set(source_digest._digest_files(PACKAGE.parent, [PACKAGE / name for name in TRIAL]))
    assert len(used) > 50
    assert used - covered == set()


def test_a_probe_depends_on_what_measures_it(copied: Path) -> None:
    (copied / "probing/probe.py").write_text((copied / "probing/probe.py").read_text() + "\nX = 1\n")
    assert digest_code(start=PROBE, package=copied) != digest_code(start=PROBE)
    assert digest_code(package=copied) == digest_code()


def test_a_plug_in_with_what_it_imports_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    files = {
        "mine.py": "import numpy\nfrom parts import model\nimport helper\n", "helper.py": "X = 1\n",
        "parts/__init__.py": "X = 0\n", "parts/model.py": "from parts.inner import Y\n", "parts/inner.py": "Y = 2\n",
        "stranger.py": "Z = 3\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = digest_plugin(str(tmp_path / "mine.py"))
    assert set(before) == set(files) - {"stranger.py"}
    for name in before:
        (tmp_path / name).write_text(f"W = 1\n{files[name]}")
        changed = digest_plugin(str(tmp_path / "mine.py"))
        assert [each for each in before if changed[each] != before[each]] == [name]
        assert digest_code(str(tmp_path / "mine.py")) != digest_code()
        (tmp_path / name).write_text(f'"""What it is."""\n# a comment\n{files[name]}')
        assert digest_plugin(str(tmp_path / "mine.py")) == before
        (tmp_path / name).write_text(files[name])


@pytest.mark.parametrize(("changed", "kept"), [
    ({}, {"val_accuracy", "train_seconds", "peak_memory_bytes"}),
    ({"driver": "581"}, {"val_accuracy"}),
    ({"cuda": "13.1"}, {"val_accuracy"}),
    ({"power_limit_watts": 300.0}, {"val_accuracy"}),
    ({"device": "cuda: another"}, {"val_accuracy"}),
    ({"python": "3.12"}, {"val_accuracy", "train_seconds", "peak_memory_bytes"}),
])  # fmt: skip
def test_times_and_memory_hold_on_an_equal_machine_alone(changed: dict[str, Any], kept: set[str]) -> None:
    machine = {"device": "cuda: one", "driver": "580", "cuda": "13.0", "power_limit_watts": 700.0, "python": "3.11"}
    measured = {"val_accuracy": 0.9, "train_seconds": 5.0, "peak_memory_bytes": 7}
    ending = Ending(outcome="complete", measurements=measured, device="cuda: one", environment=dict(machine))
    assert set(keep_portable(ending, machine | changed).measurements) == kept
