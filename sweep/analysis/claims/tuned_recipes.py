"""Claims about which recipe suits which batch: optimizers, normalization, fine-tuning; each with its own rate."""

from collections.abc import Collection

import numpy as np

from sweep.analysis.claims.claim import Claim, Measurement, plan_study
from sweep.analysis.claims.design import PAIRED_ACCURACY, TUNED_ACCURACY, Design
from sweep.analysis.claims.pairs import compare_accuracies
from sweep.analysis.claims.tuned_pairs import compare_tuned
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.costs import ran_micro_batches
from sweep.analysis.covariates import MICRO_KEYS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region
from sweep.analysis.statistics.pareto import Mask
from sweep.config.trial_config import config_keys

_OPTIMIZER_KEYS = tuple(key for key in config_keys() if key.startswith("optimizer.") and "decay" not in key)
_SCHEDULE_KEYS = tuple(key for key in config_keys() if key.startswith("schedule."))
_LARGE = 8  # times the reference batch
_SMALL = 32  # samples
_SMALL_FINE_TUNING = 64
_FEW_SAMPLES = 16  # of a batch normalization's statistics
_SGD, _ADAM, _LAYERWISE = ("sgd", "momentum", "nesterov"), ("adam", "adamw"), ("lars", "lamb")


def _compare_optimizers(
    records: ComparableTrials, ours: Collection[str], others: Collection[str], among: Mask | None = None
) -> Measurement:
    names = read_text(records.done, "config.optimizer.name")
    rows = np.isin(names, [*ours, *others])
    rows &= np.ones(len(names), dtype=np.bool_) if among is None else among
    return compare_tuned(records.done[rows], _OPTIMIZER_KEYS, np.isin(names[rows], list(ours)))


def _measure_layerwise(records: ComparableTrials) -> Measurement:
    batches = read_numbers(records.done, "global_batch_size")
    is_large = batches >= _LARGE * read_numbers(records.done, "config.optimizer.reference_batch")
    return _compare_optimizers(records, _LAYERWISE, (*_SGD, *_ADAM), is_large)


def _measure_sgd(records: ComparableTrials) -> Measurement:
    is_small = read_numbers(records.done, "global_batch_size") <= _SMALL
    return _compare_optimizers(records, _SGD, _ADAM, is_small)


def _measure_muon(records: ComparableTrials) -> Measurement:
    return _compare_optimizers(records, ("muon",), ("adamw",))


def _measure_schedule_free(records: ComparableTrials) -> Measurement:
    # against AdamW with a rate that falls; each optimizer has its own schedule
    trials = records.done
    names, schedules = (read_text(trials, f"config.{key}.name") for key in ("optimizer", "schedule"))
    ours = np.asarray(names == "schedule_free", dtype=np.bool_)
    rows = ours & (schedules == "constant") | ((names == "adamw") & (schedules != "constant"))
    return compare_tuned(trials[rows], (*_OPTIMIZER_KEYS, *_SCHEDULE_KEYS), ours[rows])


def _measure_fine_tuning(records: ComparableTrials) -> Measurement:
    trials = records.done[read_text(records.done, "config.model.weights") != ""]
    return compare_tuned(trials, MICRO_KEYS, read_numbers(trials, "global_batch_size") <= _SMALL_FINE_TUNING)


def _measure_small_norm(records: ComparableTrials) -> Measurement:
    # another normalization against that of the micro batch, where the micro batch is small
    trials = records.done
    norms, ranks = read_text(trials, "config.model.norm"), read_numbers(trials, "config.distributed.world_size")
    is_other = np.isin(norms, ["group", "layer"]) | ((norms == "sync") & (ranks > 1))
    rows = (ran_micro_batches(trials) < _FEW_SAMPLES) & (is_other | (norms == "batch"))
    return compare_accuracies(trials[rows], ("model.norm", "model.ghost_batch"), is_other[rows])


_RATE = "optimizer.lr"
_WIDE = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

CLAIMS = (
    Claim(
        name="layerwise_needed", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="Large batches need LARS or LAMB: from 8 times the reference batch on they gain half a point of "
        "accuracy or more over SGD and Adam, all equally tuned.",
        published="You et al. 2017, 2020. Nado et al. 2021 (arXiv:2102.06356): tuned Nesterov momentum and Adam match "
        "or exceed them.",
        measure=_measure_layerwise, settle=plan_study, varies=("optimizer.name", _RATE),
        design=Design(
            base={"batch.micro": 256, "optimizer.reference_batch": 32},
            space={"optimizer.name": ("lars", "nesterov"), _RATE: (*_WIDE, 3.0, 10.0)}, spread=TUNED_ACCURACY,
        ),
    ),
    Claim(
        name="sgd_small_batch", unit="fraction difference", region=Region(-0.005, np.inf), matters=0.005,
        statement="At small batches (up to 32 samples) SGD is as good as Adam: within half a point of accuracy or "
        "better, both equally tuned.",
        published="Marek et al. 2025 (arXiv:2507.07101): the gap between optimizers shrinks with the batch; SGD "
        "without momentum is close to AdamW at small ones.",
        measure=_measure_sgd, settle=plan_study, varies=("optimizer.name", _RATE),
        design=Design(
            base={"batch.micro": 32}, space={"optimizer.name": ("sgd", "adamw"), _RATE: (0.001, *_WIDE)},
            spread=TUNED_ACCURACY,
        ),
    ),
    Claim(
        name="muon_ahead", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="Muon gains half a point of accuracy or more over AdamW at an equal length of training, both equally "
        "tuned.",
        published="Jordan et al. 2024; Liu et al. 2025 (arXiv:2502.16982): about twice the efficiency. Wen et al. 2025 "
        "(arXiv:2509.02046): far less against a well tuned AdamW, and less for larger models.",
        measure=_measure_muon, settle=plan_study, varies=("optimizer.name", _RATE),
        design=Design(
            space={"optimizer.name": ("muon", "adamw"), _RATE: (0.001, *_WIDE[:5])}, spread=TUNED_ACCURACY
        ),
    ),
    Claim(
        name="schedule_free_matches", unit="fraction difference", region=Region(-0.005, np.inf), matters=0.005,
        statement="Schedule-Free AdamW needs no falling rate: it reaches the accuracy of AdamW with one within half a "
        "point, or more, both equally tuned.",
        published="Defazio et al. 2024 (arXiv:2405.15682): matches or exceeds tuned schedules without knowing the "
        "length of training.",
        measure=_measure_schedule_free, settle=plan_study,
        varies=("optimizer.name", "schedule.name", _RATE),
        design=Design(
            space={
                "optimizer.name": ("schedule_free", "adamw"), "schedule.name": ("constant", "cosine"),
                _RATE: (0.001, *_WIDE[:4]),
            },
            spread=TUNED_ACCURACY,
        ),
    ),
    Claim(
        name="fine_tune_small_batches", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="Fine-tuning needs small batches: up to 64 samples gain half a point of accuracy or more over larger "
        "ones, both equally tuned.",
        published="A rule of thumb (16 to 64 samples, a rate 10 to 100 times smaller); no published table.",
        measure=_measure_fine_tuning, settle=plan_study, varies=("global_batch_size", _RATE),
        sets=("model.weights",),
        design=Design(
            base={"model.weights": "pretrained.safetensors"},
            space={"batch.micro": (32, 256), _RATE: (0.001, 0.003, 0.01, 0.03, 0.1)}, spread=TUNED_ACCURACY,
        ),
    ),
    Claim(
        name="small_batch_norm", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="Below 16 samples in a micro batch, batch normalization has to be synchronized or replaced: another "
        "normalization gains half a point of accuracy or more there.",
        published="Wu & He 2018 (arXiv:1803.08494), ResNet-50 with 2 images each: group normalization 24.1 %, batch "
        "normalization 34.7 % error. Goyal et al. 2017 keep 32 samples.",
        measure=_measure_small_norm, settle=plan_study, varies=("model.norm",),
        design=Design(
            base={"batch.micro": 8, "batch.accumulation": 8}, space={"model.norm": ("batch", "group")},
            spread=PAIRED_ACCURACY,
        ),
    ),
)  # fmt: skip
