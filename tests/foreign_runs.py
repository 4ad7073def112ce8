"""The trainings that every golden file of another program holds, and what each map must make of them."""

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "foreign"
BATCHES, RATES, SEEDS = (32, 128), (0.03, 0.1), (0, 1, 2)
NUM_EPOCHS = 3


def list_golden_runs() -> list[dict[str, float]]:
    """Twelve trainings, with values that no two of them share: accuracy as a fraction, seconds, bytes."""
    return [
        {
            "number": number,
            "batch": batch,
            "lr": rate,
            "seed": seed,
            "accuracy": round(0.9 + 0.001 * number + 0.01 * place, 4),
            "seconds": 100.0 + 10 * place + number / 8,
            "bytes": 2**20 * (500 + 4 * batch),
        }
        for number, (place, batch, rate, seed) in enumerate(
            ((place, batch, rate, seed) for place, batch in enumerate(BATCHES) for rate in RATES for seed in SEEDS),
            start=1,
        )
    ]


def curve_of(run: dict[str, float]) -> list[float]:
    """The accuracy after each epoch; the last one is the run's."""
    return [round(run["accuracy"] * (epoch + 1) / NUM_EPOCHS, 6) for epoch in range(NUM_EPOCHS - 1)] + [run["accuracy"]]
