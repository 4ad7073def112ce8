"""The configuration of a trial: what it accepts, what replaces what, how it is addressed."""

import pytest

from sweep.config.errors import InputError
from sweep.config.trial import TrialConfig, build_config, config_keys, flatten_config, flatten_table, replace_keys
from sweep.records.messages import TrialTask, decode_task, encode_task


def test_defaults_are_valid_and_flatten_to_every_key() -> None:
    flat = flatten_config(TrialConfig())
    assert flat["batch.micro"] == 64
    assert flat["batch.global"] is None
    assert tuple(flat) == config_keys()
    assert build_config(flat, "round trip") == TrialConfig()


@pytest.mark.parametrize(("values", "global_batch", "accumulation"), [
    ({"batch.micro": 32, "batch.accumulation": 4}, 128, 4),
    ({"batch.micro": 32, "batch.global": 80}, 80, 3),
    ({"batch.micro": 64, "batch.global": 64}, 64, 1),
    ({"batch.micro": 256, "batch.global": 100}, 100, 1),
])  # fmt: skip
def test_global_batch(values: dict[str, int], global_batch: int, accumulation: int) -> None:
    config = build_config(values, "test")
    assert config.global_batch_size == global_batch
    assert config.num_accumulation == accumulation


def test_one_budget_replaces_the_others() -> None:
    values = replace_keys({"budget.epochs": 3.0, "batch.accumulation": 2}, {"budget.steps": 7, "batch.global": 48})
    config = build_config(values, "test")
    assert (config.budget.epochs, config.budget.steps) == (None, 7)
    assert (config.batch.accumulation, config.batch.global_) == (None, 48)


def test_two_budgets_are_refused() -> None:
    with pytest.raises(InputError, match=r"give one budget, not epochs and steps"):
        build_config({"budget.epochs": 3.0, "budget.steps": 7}, "here")


@pytest.mark.parametrize(("values", "message"), [
    ({"batch.micr": 3}, r"here: unknown key 'batch.micr'. Did you mean 'batch.micro'"),
    ({"batch.micro": 0}, r"here: batch.micro: .*greater than or equal to 1 \(given: 0\)"),
    ({"batch.micro": "64"}, r"batch.micro: .*valid integer"),
    ({"batch.micro": True}, r"batch.micro: .*valid integer"),
    ({"optimizer.lr": float("nan")}, r"optimizer.lr: .*finite"),
    ({"optimizer.lr": 0.0}, r"optimizer.lr: .*greater than 0"),
    ({"model.name": "resnet9"}, r"model.name: unknown model 'resnet9'. Did you mean 'resnet8'\?"),
    ({"precision.dtype": "int8"}, r"precision.dtype: .*'fp32'"),
])  # fmt: skip
def test_bad_values_name_place_key_value_and_rule(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_config(values, "here")


def test_toml_tables_and_dotted_keys_mean_the_same() -> None:
    assert flatten_table({"batch": {"micro": 8}, "data.name": "digits"}) == {"batch.micro": 8, "data.name": "digits"}


def test_task_survives_json() -> None:
    config = build_config({"batch.global": 96, "optimizer.lr": 1 / 3, "data.root": 'a "b" ü'}, "test")
    task = TrialTask(number=3, config=config, read_test=True)
    assert decode_task(encode_task(task)) == task
