"""The shipped scripts on text: what they train, alone and as trials."""

import hashlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from studies.scripts import bert_micro, gpt_micro
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.records.messages import Ending, Evaluation, ScriptCommand, TrialTask
from sweep.records.records import decode_correct
from sweep.script.runner import run_script

SCRIPTS = Path(gpt_micro.__file__).parent
_UNIFORM = math.log(256)  # nats a byte
_SHORT = {"batch.micro": 8, "optimizer.lr": 0.01, "script.tokens": 40 * 8 * 64}
# In place of the defaults of a script that runs outside of a study.
_ALONE = """
import runpy, sweep
of_defaults = sweep.trial
sweep.trial = lambda **defaults: of_defaults(**defaults | {values})
runpy.run_path({path!r}, run_name="__main__")
"""


def run_trial(spec: StudySpec, **values: Any) -> tuple[Ending, list[Evaluation]]:
    config = spec.config(values)
    command = ScriptCommand(**spec.command(config, ""))
    *messages, ending = run_script(TrialTask(number=0, config=config, device="cpu", script=command, threads=1))
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.error) == ("complete", "")
    return ending, [message for message in messages if isinstance(message, Evaluation)]


def run_gpt(**values: Any) -> tuple[Ending, list[Evaluation]]:
    spec = load_study("gpt_micro", {"batch.accumulation": values.pop("batch.accumulation", 1)})
    values = _SHORT | values
    own = {name: values.pop(name) for name in [*values] if name.startswith("script.")}
    return run_trial(spec.model_copy(update={"base": spec.base | own}), **values)


def test_the_text_is_the_one_of_the_notice_and_of_the_study() -> None:
    digest = hashlib.sha256(gpt_micro.read_text()).hexdigest()
    spec = load_study("gpt_micro")
    assert spec.script is not None
    assert spec.script.data == f"sha256:{digest}"
    assert digest in (SCRIPTS / "shakespeare.NOTICE.md").read_text()
    assert sum(len(path.read_text().splitlines()) for path in SCRIPTS.glob("*_micro.py")) <= 300


def test_a_gpt_sees_no_later_byte_and_a_bert_no_padding() -> None:
    torch.manual_seed(0)
    rows = torch.randint(2, 256, (2, gpt_micro.CONTEXT))
    gpt, bert = gpt_micro.Transformer(256, is_causal=True), gpt_micro.Transformer(2, is_causal=False)
    later = rows.clone()
    later[:, 40:] = 7
    torch.testing.assert_close(gpt(rows)[:, :40], gpt(later)[:, :40])
    assert not torch.allclose(gpt(rows)[:, 40:], gpt(later)[:, 40:])
    assert not torch.allclose(bert_micro.classify(bert, rows), bert_micro.classify(bert, later))
    padded = rows.clone()
    padded[:, 40:] = bert_micro.PADDING
    with torch.no_grad():
        bert.positions.weight[40:] += 1.0
        moved = bert_micro.classify(bert, padded)
        bert.positions.weight[40:] -= 1.0
    torch.testing.assert_close(bert_micro.classify(bert, padded), moved)


def test_a_line_ends_its_speech_before_an_empty_line() -> None:
    rows, labels = bert_micro.read_lines()
    assert rows.shape == (10_000, gpt_micro.CONTEXT)
    assert set(rows[:, 0].tolist()) == {bert_micro.CLASS_TOKEN}
    lines = [bytes(row[1:].tolist()).rstrip(b"\0") for row in rows[:4]]
    assert lines[:2] == [b"Before we proceed any further, hear me speak.", b"Speak, speak."]
    assert labels[:2].tolist() == [1, 1]
    assert 0.25 < labels.float().mean() < 0.35


def test_beta2_keeps_its_half_life_in_tokens() -> None:
    assert gpt_micro.choose_beta2(0.95, 0, 512) == 0.95
    assert gpt_micro.choose_beta2(0.95, 2048, 2048) == 0.5
    small, large = (gpt_micro.choose_beta2(0.95, 2e5, 64 * batch) for batch in (8, 64))
    assert large == pytest.approx(small**8)
    assert 0.5 ** (2e5 / (64 * 8)) < small < 1  # after 2e5 tokens half is left
    assert small ** (2e5 / (64 * 8)) == pytest.approx(0.5)


def test_evaluations_are_even_or_denser_at_the_beginning() -> None:
    assert gpt_micro.choose_evaluations(40, 6, "even") == {7, 14, 20, 27, 34, 40}
    assert gpt_micro.choose_evaluations(64, 5, "log") == {64, 45, 32, 23, 16}
    assert gpt_micro.choose_evaluations(2, 6, "log") == gpt_micro.choose_evaluations(2, 6, "even") == {1, 2}
    with pytest.raises(AssertionError, match="write even or log"):
        gpt_micro.choose_evaluations(40, 6, "odd")


def test_schedules_rise_stay_and_fall() -> None:
    done = [0.0, 0.025, 0.05, 0.5, 0.8, 0.9, 1.0]
    assert [gpt_micro.choose_share("constant", each) for each in done] == [0, 0.5, 1, 1, 1, 1, 1]
    assert [gpt_micro.choose_share("wsd", each) for each in done] == pytest.approx([0, 0.5, 1, 1, 1, 0.5, 0])
    with pytest.raises(AssertionError, match="write constant or wsd"):
        gpt_micro.choose_share("cosine", 0.5)


def test_a_gpt_learns_as_a_trial_what_it_learns_alone() -> None:
    ending, evaluations = run_gpt()
    measured, scores = ending.measurements, np.asarray(decode_correct(ending.correct_images))
    assert measured["num_parameters"] == 136_960
    assert measured["observed_batch_size"] == 8
    assert measured["observed_lr"] == pytest.approx(0.01)
    assert measured["num_steps"] == 40
    assert measured["tokens_per_second"] == pytest.approx(64 * measured["images_per_second"], rel=1e-6)
    assert measured["num_val_samples"] == len(scores) == gpt_micro.NUM_VAL
    assert measured["val_loss"] == pytest.approx(scores.mean(), abs=1e-3)
    losses = [each.val_loss for each in evaluations]
    assert len(losses) == gpt_micro.NUM_EVALUATIONS
    assert [each.step for each in evaluations] == [7, 14, 20, 27, 34, 40]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 3.4 < _UNIFORM  # the frequencies of the bytes alone give 3.35

    values = {"batch_size": 8, "lr": 0.01, "tokens": 40 * 8 * 64}
    code = _ALONE.format(values=values, path=str(SCRIPTS / "gpt_micro.py"))
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [float(loss) for loss in re.findall(r": ([\d.]+) nats", alone)] == pytest.approx(losses, abs=6e-5)


def test_equal_seeds_are_equal_and_micro_batches_add_up() -> None:
    short = {"script.tokens": 12 * 8 * 64, "seed": 1}
    first, again = (run_gpt(**short)[0] for _ in range(2))
    assert first.correct_images == again.correct_images
    accumulated = run_gpt(**short, **{"batch.micro": 2, "batch.accumulation": 4})[0]
    assert accumulated.measurements["observed_batch_size"] == 8
    assert accumulated.measurements["val_loss"] == pytest.approx(first.measurements["val_loss"], abs=1e-3)
    data = torch.arange(1000)
    whole, other = (next(gpt_micro.draw_batches(data, 8, seed)) for seed in (1, 2))
    assert not torch.equal(whole, other)
    parts = gpt_micro.draw_batches(data, 2, 1)
    assert torch.equal(torch.cat([next(parts) for _ in range(4)]), whole)
    assert torch.equal(whole[:, 1:], whole[:, :-1] + 1)  # the byte that follows


_BERT = """
name = "bert"
[script]
command = "python bert_micro.py"
folder = "{folder}"
sample = "lines"
[base]
"budget.epochs" = 1
[space]
"batch.micro" = {{ choice = [32, 100] }}
"""


def test_a_bert_beats_the_more_frequent_answer(tmp_path: Path) -> None:
    (tmp_path / "bert.toml").write_text(_BERT.format(folder=SCRIPTS))
    ending, evaluations = run_trial(load_study(tmp_path / "bert.toml"), **{"batch.micro": 32})
    measured, right = ending.measurements, np.asarray(decode_correct(ending.correct_images))
    assert measured["num_parameters"] == 120_704
    assert measured["num_steps"] == 8000 // 32
    assert measured["observed_batch_size"] == 32
    assert right.shape == (2000,)
    assert measured["val_accuracy"] == pytest.approx(right.mean())
    assert measured["val_accuracy"] > 0.75  # "it does not end its speech" is right for 0.72
    assert 30 < measured["tokens_per_second"] / measured["images_per_second"] < 50  # bytes in a line, without padding
    assert [each.val_accuracy for each in evaluations] == [measured["val_accuracy"]]
