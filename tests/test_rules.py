"""``sweep rules``: the ranking against truths that are known, and the plan as a study that trains."""

import contextlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rules_truth import judge_atlas
from reports.rule_texts import describe_rows
from sweep.analysis.rules.combinations import COMBINATIONS, Combination, scale_recipe, start_from
from sweep.analysis.rules.moderated_variances import moderate_variances
from sweep.analysis.rules.ranking import Ranking, rank_rules
from sweep.analysis.rules.regrets import Trained, average_losses, measure_scatter, tune
from sweep.analysis.rules.settings import TrainedRecipes, build_setting, collect_settings
from sweep.analysis.rules.starts import choose_starts
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study, load_study
from sweep.config.trial_config import TrialConfig, build_config
from sweep.records.frames.frames import load_frames
from sweep.records.messages import Ending
from sweep.records.store.store import open_store

ROOT = Path(__file__).resolve().parent.parent
REFERENCE, BATCHES = 128, [8, 32, 512, 2048]
BASE: dict[str, object] = {
    "data.name": "digits",
    "optimizer.name": "adamw",
    "optimizer.lr": 0.004,
    "optimizer.weight_decay": 0.1,
}
Truth = Callable[[TrialConfig], float]


def build_grid(name: str, base: dict[str, object], grid: dict[str, list[object]]) -> StudySpec:
    space = {key: {"choice": values} for key, values in grid.items()}
    confirm = {"max_configurations": 0, "seeds": 0}  # a study that confirms has its seeds outside of the space
    return build_study({"name": name, "base": base, "space": space, "sampler": "grid", "confirm": confirm}, "test")


def make_spec(name: str = "made") -> StudySpec:
    """A grid over the rate's power, the betas' rule and the batch, of three seeds."""
    grid: dict[str, list[object]] = {
        "batch.micro": BATCHES,
        "rules.lr": [0.0, 0.25, 0.5, 0.75, 1.0],
        "rules.weight_decay": ["none", "sqrt", "linear", "timescale"],
        "rules.betas": ["none", "sqrt", "half_life"],
        "seed": [0, 1, 2],
    }
    base = BASE | {"rules.reference_batch": REFERENCE}
    return build_grid(name, base, grid)


def make_rates(name: str = "rates") -> StudySpec:
    """A grid over rate and batch without a rule."""
    grid: dict[str, list[object]] = {
        "batch.micro": [*BATCHES, REFERENCE],
        "optimizer.lr": [0.001, 0.004, 0.016],
        "seed": [0, 1, 2],
    }
    return build_grid(name, BASE, grid)


def list_rows(spec: StudySpec, truth: Truth, noise: float = 0.001) -> list[tuple[TrialConfig, float]]:
    """Every configuration of the grid with the accuracy of ``truth`` and noise."""
    rng = np.random.default_rng(0)
    size = count_grid_points(spec.space)
    assert size is not None
    configs = [spec.config(pick_grid_point(spec.space, number)) for number in range(size)]
    return [(config, truth(config) + noise * rng.standard_normal()) for config in configs]


def record(root: Path, spec: StudySpec, truth: Truth) -> str:
    """The whole grid as trials of a store; those with an accuracy below 0.2 diverged."""
    (root / spec.name).mkdir(parents=True)
    with contextlib.closing(open_store(root / spec.name / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        for number, (config, accuracy) in enumerate(list_rows(spec, truth)):
            store.add_trial(spec.name, number, "search", config, str(number))
            ending = Ending(
                outcome="diverged" if accuracy < 0.2 else "complete", device="cpu",
                measurements={} if accuracy < 0.2 else {"val_accuracy": accuracy},
            )  # fmt: skip
            store.finish_trial(spec.name, number, ending)
    return str(root / spec.name)


def follow_sqrt(config: TrialConfig) -> float:
    """The best rate is 0.004 at 128 images and follows the square root; each factor of 4 costs 3 points. Weight decay
    has no effect, half-life betas gain half a point for each factor of 4, and another beta1
    costs a point."""
    batch = config.global_batch_size
    recipe = scale_recipe(config, batch)
    best = 0.004 * math.sqrt(batch / REFERENCE)
    assert recipe.beta2 is not None
    missed = abs(math.log(math.log(recipe.beta2) / math.log(0.999) / (batch / REFERENCE), 4))
    return 0.95 - 0.03 * math.log(recipe.lr / best, 4) ** 2 - 0.005 * missed - 0.01 * (recipe.beta1 != 0.9)


def rank(truth: Truth = follow_sqrt, noise: float = 0.001) -> Ranking:
    rows = [row for spec in (make_spec(), make_rates()) for row in list_rows(spec, truth, noise)]
    return rank_rules(TrainedRecipes(settings=(build_setting("resnet8", rows),), notes=()))


def test_sixty_combinations_leave_the_recipe_at_the_reference_batch_as_it_is() -> None:
    assert len(set(COMBINATIONS)) == 60
    config = start_from(build_config(BASE, "test"), scale_recipe(build_config(BASE, "test"), 256), REFERENCE)
    recipes = {scale_recipe(combination.apply(config), REFERENCE) for combination in COMBINATIONS}
    assert len(recipes) == 1
    assert len({scale_recipe(combination.apply(config), 512) for combination in COMBINATIONS}) == 51
    assert all(Combination.of(combination.apply(config)) == combination for combination in COMBINATIONS)


def test_the_rule_of_the_truth_is_the_best_and_regrets_are_those_of_the_truth() -> None:
    ranking = rank()
    assert (ranking.reference, ranking.untrained, len(ranking.places)) == (REFERENCE, (), 4)
    assert sum(len(rule.combinations) for rule in ranking.rules) == 60
    best = ranking.rules[0].combinations
    assert {(each.lr, each.betas) for each in best} == {("sqrt", "half_life")}
    by_rule = {each: rule for rule in ranking.rules for each in rule.combinations}
    # the mean over 1/16, 1/4, 4 and 16 times the batch of what the truth takes away
    for lr, power in (("none", 0.0), ("power 0.25", 0.25), ("linear", 1.0)):
        rule = by_rule[Combination(lr, "none", "half_life")]
        expected = 0.03 * (power - 0.5) ** 2 * np.mean([4, 1, 1, 4])
        assert rule.regret == pytest.approx(expected, abs=0.002)
        assert rule.low < expected < rule.high
        assert rule.standing == "worse"
    assert by_rule[Combination("sqrt", "none", "none")].regret == pytest.approx(
        0.005 * np.mean([2, 1, 1, 2]), abs=0.002
    )
    # weight decay has no effect: these are not told apart, and it is stated what would tell them
    level = [rule for rule in ranking.rules if rule.standing == "not told apart"]
    assert {(each.lr, each.betas) for rule in level for each in rule.combinations} == {("sqrt", "half_life")}
    assert ranking.num_needed == 0  # three seeds tell half a point at this noise


def test_noise_widens_the_intervals_and_raises_what_is_needed() -> None:
    exact, noisy = rank(), rank(noise=0.02)
    widths = [np.median([rule.high - rule.low for rule in ranking.rules]) for ranking in (exact, noisy)]
    assert 10 < widths[1] / widths[0] < 40
    assert noisy.num_needed > 100
    assert noisy.num_needed % len(noisy.places) == 0
    assert sum(rule.standing == "worse" for rule in noisy.rules) < sum(rule.standing == "worse" for rule in exact.rules)


def test_trainings_without_a_rule_count_for_every_rule_that_gives_their_recipe(tmp_path: Path) -> None:
    # rates a factor of four apart at batches a factor of four apart: at 32 and 512 those of no rule and of linear
    place = record(tmp_path, make_rates(), lambda config: follow_sqrt(config))
    ranking = rank_rules(collect_settings([load_frames(place)]), REFERENCE)
    ranked = {(each.lr, each.weight_decay, each.betas) for rule in ranking.rules for each in rule.combinations}
    assert ranked == {("none", "none", "none")}
    assert {place.batch for place in ranking.places} >= {32, 512}
    assert len(ranking.untrained) == 59


def test_a_diverged_training_counts_as_bad(tmp_path: Path) -> None:
    def diverge(config: TrialConfig) -> float:
        return 0.1 if config.optimizer.lr > 0.01 else follow_sqrt(config)

    trained = collect_settings([load_frames(record(tmp_path, make_rates(), diverge))])
    assert [note for note in trained.notes if "15 diverged trainings" in note]
    (setting,) = trained.settings
    worst = scale_recipe(build_config(BASE | {"optimizer.lr": 0.016}, "test"), 8)
    assert setting.accuracies[8][worst] == {0: 0.0, 1: 0.0, 2: 0.0}  # how many classes there are is not on record


def test_the_tuned_run_is_chosen_by_the_other_seeds() -> None:
    base = scale_recipe(build_config(BASE, "test"), 256)
    good, lucky = base._replace(lr=1.0), base._replace(lr=2.0)
    # by all seeds the lucky one is the best; seed 0 is not flattered by the luck that it brought
    scatter = measure_scatter({good: {0: 0.90, 1: 0.90, 2: 0.90}, lucky: {0: 0.99, 1: 0.88, 2: 0.88}, base: {0: 1.0}})
    assert tune(scatter).by_seed == {0: 0.90, 1: 0.88, 2: 0.88}
    better = [Trained({0: 0.9, 1: 0.8}, 0.01, 4), Trained({0: 0.5, 1: 0.7}, 0.02, 4)]
    worse = [Trained({0: 0.8, 1: 0.8}, 0.03, 2), Trained({0: 0.5, 1: 0.5, 2: 0.1}, 0.02, 4)]
    loss = average_losses(better, worse)
    assert (loss.value, loss.n) == (pytest.approx(0.075), 4)
    parts = np.array([0.01, 0.03, 0.02, 0.02]) / 2 / 4
    assert loss.error == pytest.approx(math.sqrt(parts.sum()))
    assert loss.degrees == pytest.approx(parts.sum() ** 2 / np.sum(parts**2 / [4, 2, 4, 4]))
    assert math.isnan(average_losses(better, [Trained({0: 0.8}), Trained({})]).value)
    assert average_losses(better, better).error == 0


def test_what_a_seed_does_to_all_recipes_does_not_count_as_scatter() -> None:
    rng, base = np.random.default_rng(2), scale_recipe(build_config(BASE, "test"), 256)
    shift = {0: 0.0, 1: 0.1, 2: -0.1}
    recipes = {
        base._replace(lr=float(rate)): {seed: 0.9 + shift[seed] + 0.01 * rng.standard_normal() for seed in shift}
        for rate in range(1, 201)
    }
    variances = [each.variance for each in measure_scatter(recipes).values()]
    assert np.mean(variances) == pytest.approx(0.01**2, rel=0.2)


def test_variances_are_drawn_to_the_common_one_as_far_as_they_scatter_no_more_than_by_chance() -> None:
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((400, 3))
    equal, degrees = moderate_variances(np.var(draws, axis=1, ddof=1), np.full(400, 2.0))
    assert equal == pytest.approx(np.ones(400), abs=0.35)
    assert degrees.min() > 20
    # true variances that are those of an inverse chi-squared distribution with 6 degrees of freedom about 4
    scale = np.sqrt(4 * 6 / rng.chisquare(6, 4000))[:, None]
    draws = scale * rng.standard_normal((4000, 3))
    scattered, degrees = moderate_variances(np.var(draws, axis=1, ddof=1), np.full(4000, 2.0))
    assert degrees[0] == pytest.approx(8, rel=0.2)
    truth = scale[:, 0] ** 2
    assert np.mean((np.log(scattered) - np.log(truth)) ** 2) < 0.5  # 1.9 for the variances as they are
    few = np.array([1.0, 4.0])
    assert moderate_variances(few, np.array([2.0, 2.0]))[0] is few


def test_what_cannot_be_ranked_is_refused_with_the_remedy(tmp_path: Path) -> None:
    place = record(tmp_path, make_rates(), follow_sqrt)
    trained = collect_settings([load_frames(place)])
    with pytest.raises(InputError, match=r"no training at the reference batch 64; .* 8, 32, 128, 512, 2,048"):
        choose_starts(trained, 64)
    assert run_app(["rules", place, "--reference", "64"]) == 2
    assert run_app(["rules", place, "--seeds", "3"]) == 2
    assert run_app(["rules", place, "--plan", "--out", str(tmp_path / "plan.txt")]) == 2
    alone = [row for row in list_rows(make_rates(), follow_sqrt) if row[0].global_batch_size == REFERENCE]
    with pytest.raises(InputError, match="no rule can be ranked"):  # and no warning
        rank_rules(TrainedRecipes(settings=(build_setting("resnet8", alone),), notes=()), REFERENCE)
    other = make_rates("other").model_copy(update={"base": BASE | {"budget.target_accuracy": 0.9}})
    with pytest.raises(InputError, match="no complete training of a fixed length"):
        collect_settings([load_frames(record(tmp_path, other, follow_sqrt))])


def test_the_command_prints_the_ranking_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = record(tmp_path, make_rates(), follow_sqrt)
    assert run_app(["rules", place, "--reference", "128", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["reference"], document["num_trainings"], len(document["untrained"])) == (128, 45, 59)
    (rule,) = document["rules"]
    assert rule["combinations"] == [
        {
            "lr": "none",
            "weight_decay": "none",
            "betas": "none",
            "dropout": "none",
            "label_smoothing": "none",
            "ema": "none",
        }
    ]
    assert len(rule["regrets"]) == len(document["places"])
    assert run_app(["rules", place, "--reference", "128"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"resnet8 at 128: learning rate 0.004, weight decay 0.1, betas 0.9 and 0.999: 9[45]\.\d", shown)
    assert "Least regret: learning rate as it is, weight decay as it is, betas as it is." in shown
    assert "59 combinations without two seeds at every place: not ranked." in shown


def test_the_plan_trains_every_rule_at_every_other_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "runs", make_rates(), follow_sqrt)
    assert run_app(["rules", "rates", "--plan", "--reference", "128", "--seeds", "2", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)
    assert planned == {"file": "rates_rules.toml", "trainings": 480, "command": "sweep run rates_rules.toml"}
    spec = load_study(Path(planned["file"]))
    configs = [spec.config(pick_grid_point(spec.space, number)) for number in range(480)]
    start = start_from(configs[0], scale_recipe(configs[0], 128), 128)
    expected = {scale_recipe(combination.apply(start), batch) for combination in COMBINATIONS for batch in BATCHES}
    assert {scale_recipe(config, config.global_batch_size) for config in configs} == expected
    assert scale_recipe(start, 128).lr == 0.004  # the best of the truth at the reference batch
    assert run_app(["rules", "rates", "--plan", "--reference", "128"]) == 2
    assert "rates_rules.toml exists already" in capsys.readouterr().err
    elsewhere = ["rules", "rates", "--plan", "--reference", "128", "--root", str(tmp_path / "runs"), "--out", "b.toml"]
    assert run_app(elsewhere) == 0
    assert f"sweep run b.toml --root {tmp_path / 'runs'}" in capsys.readouterr().out


def test_what_is_left_out_is_named() -> None:
    rows = [row for spec in (make_spec(), make_rates()) for row in list_rows(spec, follow_sqrt)]
    sparse = [(build_config(BASE | {"batch.micro": 64, "seed": seed}, "test"), 0.9) for seed in (0, 1)]
    settings = (build_setting("resnet8", rows + sparse), build_setting("other", sparse))
    ranking = rank_rules(TrainedRecipes(settings=settings, notes=("a note",)), REFERENCE)
    assert ranking.notes == (
        "a note",
        "Left out, without a training at the reference batch 128: other.",
        "Left out, because few or no rules were trained there with two seeds: resnet8 64.",
    )


def test_the_recorded_experiment_ranks_as_its_page_shows() -> None:
    stored = json.loads((ROOT / "docs/generators/rules.json").read_text(encoding="utf-8"))
    places = [ROOT / f"benchmarks/tables/digits_{name}" for name in ("rates", "rules_resnet8", "rules_vit_micro")]
    ranking = rank_rules(collect_settings([load_frames(place) for place in places]), REFERENCE)
    assert [(start.setting.name, start.recipe.lr) for start in ranking.starts] == [
        ("resnet8", 0.008),
        ("vit_micro", 0.004),
    ]
    assert (ranking.num_trainings, len(ranking.places), ranking.untrained) == (1374, 8, ())
    shown = {tuple(row[1:4]): row for row in stored["rows"]}
    assert len(shown) == 60
    rows = [row for rule in ranking.rules for row in describe_rows(ranking, [rule])]
    for row in rows:
        assert shown[row[1:4]][6] == row[6]  # best, worse or not told apart
        assert float(shown[row[1:4]][5].split()[0]) == pytest.approx(float(row[5].split()[0]), abs=0.011)


def test_made_up_atlases_are_ranked_as_their_truths() -> None:
    judged = [judge_atlas(number) for number in range(3)]
    assert not any(each.is_wrong for each in judged)
    held = [held for each in judged for held in each.held]
    assert np.mean(held) > 0.75  # 95 % in the long run
    assert np.mean([found for each in judged for found in each.found]) > 0.3
