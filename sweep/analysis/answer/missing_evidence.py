"""What to run when the records cannot answer, or cannot answer surely."""

import numpy as np

from sweep.analysis.answer.candidates import ACCURACY, Candidates
from sweep.analysis.answer.commands import confirm_more, run_more, run_variant, train_and_save
from sweep.analysis.statistics.intervals import CONFIDENCE

# Below this certainty the answer names what would make it surer; so it does where it may be off the front.
_SURE = 0.8


def command_for_none(contest: Candidates, name: str) -> str:
    """What to run where no configuration comes into question for the use called ``name``."""
    study, spec = contest.ground.called, contest.ground.spec
    if name == "fine_tune":
        weights = f"{study.name}_weights.safetensors"
        # weights fit one model
        best = contest.ground.frame.iloc[int(contest.rows[np.argmax(contest.values(ACCURACY))])]
        model = {"model.name": best["config.model.name"]} if "model.name" in contest.ground.swept else {}
        tuned = run_variant(study, "fine_tune", {**model, "model.weights": weights})
        return f"{train_and_save(study, weights, model)} && {tuned}"
    if name == "distributed":
        return run_variant(study, "distributed", {"distributed.world_size": 2})
    return run_more(study, 2 * (spec.trials if spec else max(10, len(contest.ground.trials))))


def command_for_more(contest: Candidates, pick: int, certainty: float) -> str | None:
    """What would make the choice of the contender ``pick`` surer; None where it is sure enough."""
    ground = contest.ground
    seeds = ground.spec.confirm.seeds if ground.spec else 3
    if not contest.confirmed[pick]:
        return confirm_more(ground.called, configurations=_num_to_confirm(contest), seeds=max(3, seeds))
    if certainty < _SURE or contest.p_front[pick] < CONFIDENCE:
        return confirm_more(ground.called, configurations=_num_to_confirm(contest), seeds=max(3, 2 * seeds))
    return None


def _num_to_confirm(contest: Candidates) -> int:
    # confirming takes the front's trials, so a number as large as the front leaves none of them out
    likely = int(np.sum(contest.p_front > 0.05))
    spec = contest.ground.spec
    return min(1000, max(likely, spec.confirm.max_configurations if spec else 4))
