"""The benchmarks' harness: arithmetic, the line, exit codes; every benchmark runs in its smallest setting."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import results, table
from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Result, Setting, measure
from benchmarks.images import cifar_images
from benchmarks.mfu import training_flops
from benchmarks.precision import compare
from sweep.config.errors import InputError

CPU = torch.device("cpu")
LINE = re.compile(r"^(\w+) ratio=([\d.e+-]+) low=(\S+) high=(\S+) target=([\d.]+) n=(\d+)$")


def result(ours: tuple[float, ...], theirs: tuple[float, ...], better: str = "higher", target: float = 2.0) -> Result:
    assert better in ("higher", "lower")
    return Result("some", "images/s", "lower" if better == "lower" else "higher", target, ours, theirs, {}, 0.0, 0.0)


def test_ratio_is_the_median_over_pairs_with_its_bootstrap_interval() -> None:
    measured = result((2.0, 9.0, 4.0, 20.0, 6.0), (1.0, 3.0, 1.0, 10.0, 1.0))
    assert measured.ratios == (2.0, 3.0, 4.0, 2.0, 6.0)
    assert measured.interval.median == 3.0  # not 41 / 16
    draws = np.random.default_rng(1).choice(measured.ratios, (20_000, 5))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    assert (measured.interval.low, measured.interval.high) == (low, high) == (2.0, 6.0)
    assert measured.line == "some ratio=3 low=2 high=6 target=2 n=5"


@pytest.mark.parametrize(
    ("better", "target", "is_met"),
    [("higher", 3.0, True), ("higher", 3.01, False), ("lower", 3.0, True), ("lower", 2.99, False)],
)
def test_target_is_met_on_the_right_side(better: str, target: float, is_met: bool) -> None:
    assert result((3.0, 3.0, 3.0), (1.0, 1.0, 1.0), better, target).is_met == is_met


@contextmanager
def counting(_setting: Setting) -> Iterator[Arms]:
    calls: list[tuple[str, int]] = []

    def arm(name: str, figure: float) -> float:
        calls.append((name, len(calls)))
        return figure

    def check() -> dict[str, object]:
        return {"order": "".join(name for name, _ in calls)}

    yield Arms(lambda pair: arm("A", 10.0 + pair), lambda _pair: arm("B", 5.0), check)


COUNTING = Benchmark("counting", "counts", "images/s", "higher", 2.0, counting)


def test_arms_take_turns_to_go_first_after_one_round_of_warm_up() -> None:
    measured = measure(COUNTING, Setting(CPU), num_pairs=3)
    assert measured.facts == {"order": "BAABBAAB"}
    assert measured.ours == (10.0, 11.0, 12.0)
    assert measured.theirs == (5.0, 5.0, 5.0)


def test_exit_code_follows_the_target(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for target, code in ((2.0, 0), (2.5, 1)):
        monkeypatch.setattr(table, "find", lambda _name, target=target: COUNTING._replace(target=target))
        assert command.main(["counting", "--pairs", "3"]) == code
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"counting ratio=2.2 low=2 high=2.4 target={target:g} n=3"


def test_arms_that_differ_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def differing(_setting: Setting) -> Iterator[Arms]:
        def check() -> dict[str, object]:
            raise ArmsDifferError("losses differ")

        yield Arms(lambda _pair: 1.0, lambda _pair: 1.0, check)

    monkeypatch.setattr(table, "find", lambda _name: COUNTING._replace(prepare=differing, target=0.5))
    assert command.main(["counting", "--pairs", "2"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "losses differ" in output.err


@pytest.mark.parametrize("arguments", [["no_such"], ["input", "--pairs", "0"], ["input", "--device", "cuda:99"]])
def test_wrong_input_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_list_shows_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(table.MODULES)


def test_a_saved_result_holds_raw_samples_and_the_environment(tmp_path: Path) -> None:
    measured = result((2.0, 3.0, 4.0, 2.0, 6.0), (1.0,) * 5)
    path = results.save(measured, CPU, tmp_path)
    assert re.fullmatch(r"some-cpu_[a-z0-9_]+-\d{4}-\d\d-\d\d\.json", path.name)
    document = json.loads(path.read_text())
    assert document["line"] == measured.line
    assert document["ours"] == list(measured.ours)
    assert document["ratios"] == [2.0, 3.0, 4.0, 2.0, 6.0]
    assert document["environment"]["versions"]["torch"] == torch.__version__
    with pytest.raises(InputError, match="5 pairs"):
        results.save(result((1.0,) * 4, (1.0,) * 4), CPU, tmp_path)


_COUNTED = ("answer_", "claims_", "critical_batch", "reference_points", "rules_truth", "ask_guide_")


def test_committed_results_are_what_they_say() -> None:
    for path in results.FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        if "interval" not in document:  # no single ratio: a table of forecasts, or counts over studies
            assert path.with_suffix(".md").exists() or path.name.startswith(_COUNTED), path.name
            # of a GPU the pieces of one file may come from several machines
            environments = document.get("environments") or {"": document["environment"]}
            assert all(each["versions"]["torch"] for each in environments.values()), path.name
            continue
        again = Result(**{name: document[name] for name in Result.__dataclass_fields__})
        assert again.line == document["line"], path.name
        assert again.is_met == document["is_met"], path.name
        assert len(again.ours) >= 5


def test_images_without_the_archive_are_noise_of_the_same_shape(tmp_path: Path) -> None:
    images, source = cifar_images(50, Setting(CPU), tmp_path / "absent.tar.xz")
    assert source == "noise"
    assert images.pixels.shape == (50, 32, 32, 3)


def test_accuracies_are_compared_with_the_noise_of_seeds() -> None:
    apart, error = compare([0.5, 0.6, 0.7], [0.4, 0.5, 0.6])
    assert apart == pytest.approx(0.1)
    assert error == pytest.approx(np.sqrt(0.01 / 3 + 0.01 / 3))


def test_flops_of_a_linear_layer_are_its_products_forward_and_twice_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 10, bias=False))
    images, labels = torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    # the first layer's input requires no gradient
    assert training_flops(model, images, labels) == 2 * (2 * 8 * 16 + 3 * 16 * 10)


@pytest.mark.parametrize(
    "name", ["input", "harness", "data_look", "data_look_again", pytest.param("precision", marks=pytest.mark.slow)]
)
def test_every_benchmark_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--tiny", "--pairs", "1"]) in (0, 1)
    match = LINE.match(capsys.readouterr().out.splitlines()[-1])
    assert match
    assert match[1] == name
    assert match[6] == "1"


@pytest.mark.parametrize("name", ["lightning", "accelerate"])
@pytest.mark.filterwarnings("ignore")  # of the libraries, at import
def test_every_peer_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec(name) is None:
        with pytest.raises(InputError, match="bench"):
            table.find(name)
        pytest.skip(f"{name} is not installed; make bench installs it")
    assert command.main([name, "--tiny", "--pairs", "1"]) in (0, 1)
    assert LINE.match(capsys.readouterr().out.splitlines()[-1])
