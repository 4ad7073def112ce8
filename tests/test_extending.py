"""What an entry of a table lacks, with the place to add it; every model and optimizer is estimated, probed, trained."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import (
    DATASETS,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    DataFacts,
    ImageShape,
    has_batch_statistics,
    resolve,
)
from sweep.config.trial import build_config, config_keys, keys_of_cost
from sweep.probing.memory import estimate_memory
from sweep.probing.probe import run_probe
from sweep.records.messages import Ending, ProbeTask, TrialTask
from sweep.training.data.sources import find_facts, load_splits, look_at_data
from sweep.training.models import resnets as norms
from sweep.training.models.build import build_model, find_residual_blocks, find_stages
from sweep.training.trial import run_trial

TABLES: dict[str, dict[str, Any]] = {"model": MODELS, "data": DATASETS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
# Those of a plug-in that another test imported are no entries of the project.
OWN_DATA = [name for name, entry in DATASETS.items() if isinstance(entry.load, str)]
ENTRIES = [(kind, name) for kind, table in TABLES.items() for name in (OWN_DATA if kind == "data" else table)]
SLOW = {"vit_base", "vit_small", "vit_tiny", "resnet50", "resnet56"}
SHAPE = ImageShape(channels=3, side=32, num_classes=10)
TINY: dict[str, Any] = {
    "data.subset": 8, "batch.micro": 4, "batch.accumulation": 2, "budget.steps": 1, "schedule.warmup": 0.0,
    "optimizer.lr": 1e-3,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_entry_names_functions_that_exist(kind: str, name: str) -> None:
    texts = [value for value in vars(TABLES[kind][name]).values() if isinstance(value, str) and ":" in value]
    assert all(callable(resolve(text)) for text in texts), f"{kind} {name}: a function of its entry is missing: {texts}"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["batch", "ghost", "group", "layer", "sync"])
def test_a_model_normalizes_as_its_entry_declares(name: str, norm: str) -> None:
    with torch.device("meta"):
        model = build_model(ModelSection.model_validate({"name": name, "norm": norm}), SHAPE)
    assert has_batch_statistics(name, norm) == bool(norms.find_batch_norms(model)), (
        f"model {name}: has_batch_statistics of its entry in sweep/config/tables.py is wrong, or its function "
        "ignores model.norm: take sweep.training.models.resnets.choose_norm_layer(section)"
    )
    assert MODELS[name].family != "custom", f"model {name}: name its family in sweep/config/tables.py"
    assert find_residual_blocks(model), f"model {name}: list its blocks, see sweep/training/models/build.py"
    assert len(find_stages(model)) > 1, f"model {name}: list its stages, see sweep/training/models/build.py"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_drops_the_declared_share(name: str) -> None:
    shares = []
    for dropout in (0.0, 0.5):
        with torch.device("meta"):
            model = build_model(ModelSection.model_validate({"name": name, "dropout": dropout}), SHAPE)
        shares.append({module.p for module in model.modules() if isinstance(module, nn.Dropout)} - {0.0})
    assert shares == [set(), {0.5}], (
        f"model {name}: its function ignores model.dropout: apply nn.Dropout(section.dropout) before the head"
    )


@pytest.mark.parametrize("name", [name for name in OWN_DATA if not DATASETS[name].published])
def test_a_data_set_is_counted_as_it_is_loaded(name: str, tmp_path: Path) -> None:
    config = build_config({"data.name": name, "data.root": str(tmp_path / "absent")}, "test")
    try:
        splits = load_splits(config.data)
    except InputError:
        if DATASETS[name].depends_on_root:
            pytest.skip("requires files under data.root")
        raise
    summary = look_at_data(config.data)
    assert not DATASETS[name].depends_on_root, (
        f"data {name}: it loads without files, so give depends_on_root=False in sweep/config/tables.py"
    )
    assert summary.digest, f"data {name}: without digest no trial is reused; see DatasetEntry"
    assert (summary.num_train, summary.num_val, summary.num_test) == (
        len(splits.train), len(splits.validation), len(splits.read_test()),
    )  # fmt: skip
    found = DataFacts(splits.shape, len(splits.train))
    assert find_facts(config.data) == found, f"data {name}: its facts are {found}: give them in sweep/config/tables.py"


def test_every_key_declares_what_it_changes() -> None:
    declared = [keys_of_cost(cost) for cost in ("step", "switch", "derived", "trial", "none")]
    assert sorted(key for keys in declared for key in keys) == sorted((*config_keys(), "script"))


@pytest.mark.parametrize(("key", "name"), [
    *(pytest.param("model.name", name, marks=[pytest.mark.wide] if name in SLOW else []) for name in MODELS),
    *(("optimizer.name", name) for name in OPTIMIZERS),
])  # fmt: skip
def test_every_model_and_optimizer_is_estimated_probed_and_trained(key: str, name: str) -> None:
    config = build_config(TINY | {key: name}, "test")
    assert min(asdict(estimate_memory(config)).values()) >= 0
    for ending in (
        [*run_probe(ProbeTask(number=0, config=config, device="cpu", timed_seconds=0.01))][-1],
        [*run_trial(TrialTask(number=0, config=config, device="cpu"))][-1],
    ):
        assert isinstance(ending, Ending)
        assert ending.outcome == "complete", ending.error
