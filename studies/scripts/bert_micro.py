"""A BERT of 120,000 parameters that says whether a line of a play ends the speech that it is in, in plain PyTorch.

Run it alone, ``python bert_micro.py``, or as the trials of a study. A sample is a line; each byte is a token.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import sweep
from studies.scripts.gpt_micro import CONTEXT, Transformer, read_text

CLASS_TOKEN, PADDING = 1, 0  # two bytes that the text does not have


def read_lines() -> tuple[Tensor, Tensor]:
    """The first 10,000 lines of speech behind the class token (shape ``[n, CONTEXT]``), and whether an empty line
    follows."""
    text = read_text().split(b"\n")
    pairs = [(line, not after) for line, after in pairwise(text) if line and line[-1:] != b":"]
    rows = [[CLASS_TOKEN, *line[: CONTEXT - 1].ljust(CONTEXT - 1, bytes([PADDING]))] for line, _ in pairs[:10_000]]
    return torch.tensor(rows), torch.tensor([int(is_last) for _, is_last in pairs[:10_000]])


def classify(model: nn.Module, rows: Tensor) -> Tensor:
    """The output at the class token (shape ``[b, 2]``)."""
    out: Tensor = model(rows, keep=(rows != PADDING)[:, None, None])[:, 0]
    return out


def main() -> None:
    """Trains and reports."""
    trial = sweep.trial(batch_size=32, accumulation=1, lr=3e-3, weight_decay=0.1, seed=0, epochs=2)
    rows, labels = read_lines()
    is_val = torch.arange(len(rows)) % 5 == 0
    train, val = (TensorDataset(rows[part], labels[part]) for part in (~is_val, is_val))
    torch.manual_seed(trial.seed)
    loader = DataLoader(train, trial.batch_size, shuffle=True)
    model = Transformer(2, is_causal=False)
    optimizer = torch.optim.AdamW(model.parameters(), trial.lr, weight_decay=trial.weight_decay)
    for epoch in range(trial.epochs):
        for number, (lines, classes) in enumerate(trial.batches(loader, lambda batch: (batch[0] != PADDING).sum()), 1):
            (cross_entropy(classify(model, lines), classes) / trial.accumulation).backward()
            if number % trial.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
        with torch.no_grad():
            right = torch.cat([classify(model, lines).argmax(1) == classes for lines, classes in DataLoader(val, 250)])
        print(f"pass {epoch + 1} of {trial.epochs}: accuracy {right.float().mean():.4f} on {len(right)} lines")
        trial.report(scores=right)


if __name__ == "__main__":
    main()
