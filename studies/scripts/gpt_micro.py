"""A GPT of 140,000 parameters on the bytes of plays by Shakespeare, in plain PyTorch.

Run it alone, ``python gpt_micro.py``, or as the trials of a study. A sample is a sequence of 64 bytes; each byte is a
token.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import sweep

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
NUM_BYTES = 256
NUM_VAL = 1000  # sequences, spread evenly over the last tenth of the text
NUM_EVALUATIONS = 6


def read_text() -> bytes:
    """The whole text, 1,115,394 bytes."""
    return lzma.decompress(Path(__file__).with_name("shakespeare.txt.xz").read_bytes())


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm. ``keep`` (shape ``[b, 1, 1, t]``) leaves out padding."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        query, key, value = self.mix(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=keep, is_causal=self.is_causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.perceptron(self.norms[1](x))
        return out


class Transformer(nn.Module):
    """From bytes (shape ``[b, t]``) to ``num_outputs`` numbers for each (shape ``[b, t, num_outputs]``)."""

    def __init__(self, num_outputs: int, is_causal: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(NUM_BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(is_causal) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_outputs, bias=False)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head(self.norm(x))
        return out


def choose_beta2(beta2: float, halflife: float, tokens_per_step: int) -> float:
    """The beta2 with which a squared gradient has lost half its weight after ``halflife`` tokens, whatever the batch
    size (Marek et al. 2025, arXiv:2507.07101); ``beta2`` itself where ``halflife`` is 0."""
    return 0.5 ** (tokens_per_step / halflife) if halflife else beta2


def choose_share(schedule: str, done: float) -> float:
    """The share of the highest learning rate after the share ``done`` of the training. It rises over one twentieth.
    Under "wsd" (warm-up, stable, decay) it falls to 0 over the last fifth, under "constant" it stays."""
    assert schedule in ("constant", "wsd"), f"script.schedule = {schedule!r}: write constant or wsd"
    return min(1.0, 20 * done, 5 * (1 - done) if schedule == "wsd" else 1.0)


def choose_evaluations(num_steps: int, number: int, spacing: str) -> set[int]:
    """The steps after which the validation data are read, the last one among them: "even" ones, or, "log", each later
    by the square root of 2 than the one before."""
    assert spacing in ("even", "log"), f"script.spacing = {spacing!r}: write even or log"
    if spacing == "even":
        return {-(-num_steps * place // number) for place in range(1, number + 1)}
    return {max(1, round(num_steps / 2 ** (place / 2))) for place in range(number)}


def draw_batches(data: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of ``size`` sequences and the byte that follows each (shape ``[size, CONTEXT + 1]``)."""
    draws = torch.Generator().manual_seed(seed)
    span = torch.arange(CONTEXT + 1)
    while True:
        yield data[torch.randint(len(data) - CONTEXT, (size, 1), generator=draws) + span]


def measure_losses(model: nn.Module, rows: Tensor) -> Tensor:
    """The mean loss of each sequence in nats a byte."""
    losses = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    return losses.view(len(rows), CONTEXT).mean(1)


def main() -> None:
    """Trains and reports."""
    trial = sweep.trial(batch_size=32, accumulation=1, lr=3e-3, weight_decay=0.1, seed=0, tokens=600_000,
                        schedule="constant", beta2=0.95, beta2_halflife=200_000, evaluations=NUM_EVALUATIONS,
                        spacing="even")  # fmt: skip
    text = torch.frombuffer(bytearray(read_text()), dtype=torch.uint8).long()
    train, rest = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    val = rest[: len(rest) // NUM_VAL * NUM_VAL].view(NUM_VAL, -1)[:, : CONTEXT + 1]
    torch.manual_seed(trial.seed)
    model = Transformer(NUM_BYTES, is_causal=True)
    tokens_per_step = trial.batch_size * trial.accumulation * CONTEXT
    num_steps = max(1, round(trial.tokens / tokens_per_step))
    betas = 0.9, choose_beta2(trial.beta2, trial.beta2_halflife, tokens_per_step)
    optimizer = torch.optim.AdamW(model.parameters(), trial.lr, betas, weight_decay=trial.weight_decay)
    due = choose_evaluations(num_steps, trial.evaluations, trial.spacing)
    batches = trial.batches(draw_batches(train, trial.batch_size, trial.seed), lambda rows: rows[:, 1:].numel())
    for step in range(1, num_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = trial.lr * choose_share(trial.schedule, (step - 0.5) / num_steps)
        for _ in range(trial.accumulation):
            (measure_losses(model, next(batches)).mean() / trial.accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in due:
            with trial.paused(), torch.no_grad():
                losses = torch.cat([measure_losses(model, rows) for rows in torch.split(val, 250)])
            print(f"step {step} of {num_steps}: {losses.mean():.4f} nats a byte on {len(val)} sequences")
            trial.report(val_loss=losses.mean().item(), scores=losses)


if __name__ == "__main__":
    main()
