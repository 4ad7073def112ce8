"""Batches without a DataLoader, such as nanoGPT's: one generator for the training, another for the validation."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import sweep

trial = sweep.trial(batch_size=16, accumulation=1, lr=1e-3, steps=40)
text = torch.randint(0, 50, (4000,), generator=torch.Generator().manual_seed(0))


def draw(count: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    while count is None or count > 0:
        starts = torch.randint(0, len(text) - 33, (trial.batch_size,))
        rows = torch.stack([text[start : start + 33] for start in starts])
        yield rows[:, :-1], rows[:, 1:]
        count = None if count is None else count - 1


model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.lr)
batches = trial.batches(draw(), tokens=lambda batch: batch[0].numel())
for step in range(1, trial.steps + 1):
    for _ in range(trial.accumulation):
        inputs, labels = next(batches)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        (loss / trial.accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        with trial.paused(), torch.no_grad():
            pairs = [(model(a).flatten(0, 1), b.flatten()) for a, b in draw(5)]
            losses = torch.stack([nn.functional.cross_entropy(a, b) for a, b in pairs])
        trial.report(val_loss=losses.mean().item())
