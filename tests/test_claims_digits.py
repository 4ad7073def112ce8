"""The benchmark that tests the claims on the digits, with two tiny studies, and the page of its result."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import claims_digits
from benchmarks.claim_studies import ClaimStudy, is_finished, order_points, plan_studies, run_studies
from benchmarks.claim_truths import find_effect, make_records
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import assess_claim, find_claim, find_verdicts
from sweep.analysis.statistics import correct_holm
from sweep.config.space import count_grid_points

ROOT = Path(__file__).resolve().parent.parent
NAMES = [claim.name for claim in CLAIMS]
VERDICTS = ["contradicted", "supported", "undecided", "not tested", "not measured"]
TINY = {"budget.steps": 2, "data.subset": 64}


def plan_tiny(names: list[str], folder: Path) -> list[ClaimStudy]:
    return plan_studies(names, folder / "weights.safetensors", TINY, most=4)


@pytest.fixture(scope="module")
def all_studies(tmp_path_factory: pytest.TempPathFactory) -> list[ClaimStudy]:
    return plan_studies(NAMES, tmp_path_factory.mktemp("none") / "weights.safetensors")


def test_every_claim_has_one_study_and_equal_plans_share_one(all_studies: list[ClaimStudy]) -> None:
    assert sorted(name for study in all_studies for name in study.claims) == sorted(NAMES)
    assert ("weight_decay_sqrt", "weight_decay_timescale") in [study.claims for study in all_studies]
    trainings = [study.spec.trials for study in all_studies]
    assert trainings == sorted(trainings)
    for study in all_studies:
        points = [json.dumps(point, sort_keys=True) for point in study.spec.first]
        left_out = 2 if study.claims[0] in ("schedule_free_matches", "batch_instead_of_decay") else 1
        assert len(points) == len(set(points)) == study.spec.trials == count_grid_points(study.spec.space) // left_out
    timed = {name for study in all_studies if study.is_timed for name in study.claims}
    assert {"accumulation_time", "memory_linear", "loader_bottleneck", "larger_is_faster"} <= timed
    assert not timed & {"warmup_needed", "noise_scale_temperature", "large_batches_sharp", "three_regimes"}


def test_a_study_that_is_cut_short_has_whole_repetitions() -> None:
    claim = find_claim("warmup_tolerates_rates")
    assert claim is not None
    points = order_points(claim)
    seeds = [seed for seed, _ in itertools.groupby(points, key=lambda point: point["seed"])]
    assert seeds == [0, 4, 2, 1, 3]  # each seed once, with all its points one after another
    assert len({(point["schedule.warmup"], point["optimizer.lr"]) for point in points[:10]}) == 10


def test_verdicts_on_several_studies_are_corrected_together() -> None:
    claims = [claim for claim in CLAIMS if claim.name in ("linear_decay_best", "warmup_needed", "batch_warmup")]
    rng = np.random.default_rng(2)
    # each is true by a third of the margin that its study can settle, so that no p is 0
    effects = [find_effect(claim, is_true=True, times=0.3) for claim in claims]
    records = [select_comparable(make_records(*each, rng)) for each in zip(claims, effects, strict=True)]
    assessments = [assess_claim(*each) for each in zip(claims, records, strict=True)]
    alone = [find_verdicts([each])[0].p for each in assessments]
    together = [finding.p for finding in find_verdicts(assessments)]
    assert 0.001 < min(alone) < 0.3
    assert together == pytest.approx(correct_holm(alone).tolist())
    assert min(together) == pytest.approx(3 * min(alone))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_studies_run_and_continue_and_are_tested_together(tmp_path: Path) -> None:
    studies = plan_tiny(["linear_decay_best", "checkpointing_memory"], tmp_path)
    run_studies(studies[:1], tmp_path, 200.0)
    result = claims_digits.assess_studies(studies, tmp_path)
    assert (result["without_records"], result["num_tested"]) == (["checkpointing_memory"], 1)
    run_studies(studies, tmp_path, 200.0)
    assert all(is_finished(study, tmp_path) for study in studies)
    result = claims_digits.assess_studies(studies, tmp_path)
    rows = {row["name"]: row for row in result["claims"]}
    assert list(rows) == ["linear_decay_best", "checkpointing_memory"]
    assert (result["without_records"], result["num_tested"]) == ([], 2)
    assert [rows[name]["is_timed"] for name in rows] == [False, True]
    assert [(row["n"], row["trainings_run"], row["trainings_planned"]) for row in rows.values()] == [(2, 4, 4)] * 2
    assert rows["linear_decay_best"]["detail"] == "resnet8, momentum: 2 pairs of equal settings and seed"
    path = claims_digits.save(result, tmp_path)
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert [row["name"] for row in saved["claims"]] == list(rows)
    assert saved["environment"]["device"].startswith("CPU")
    assert str(tmp_path) not in path.read_text(encoding="utf-8")


def test_wrong_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert claims_digits.main(["--root", str(tmp_path), "--minutes", "0"]) == 2
    assert "--minutes 0: give more than 0" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        claims_digits.main(["--root", str(tmp_path), "--only", "nothing"])
    assert refused.value.code == 2
    assert not list(tmp_path.iterdir())


def test_the_page_has_every_claim_and_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from generators.claims import claims_measured

    newest = json.loads(max((ROOT / "benchmarks/results").glob("claims_digits-*.json")).read_text(encoding="utf-8"))
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    assert claims_measured() in page
    verdicts = [row["verdict"] for row in newest["claims"]]
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("**")[1] for line in lines] == sorted(verdicts, key=VERDICTS.index)
    recorded, missing = {row["name"] for row in newest["claims"]}, page.partition("Without records: ")[2].split("\n")[0]
    assert recorded <= set(NAMES)
    assert all(f"`{name}`" in missing for name in {*NAMES} - recorded)
