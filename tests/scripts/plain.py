"""Loops of plain PyTorch, all of them correct: one of them is chosen by --kind."""

import argparse
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, TensorDataset, random_split

import sweep

parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="plain")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--weight-decay", type=float, default=0.0)
args = parser.parse_args()
kind, k, epochs = args.kind, args.accumulation, 3

trial = sweep.trial(seed=0)
torch.manual_seed(trial.seed)
x = torch.randn(1100, 32)
y = (x @ torch.randn(32, 5)).argmax(1)
train, val = random_split(TensorDataset(x, y), [900, 200], torch.Generator().manual_seed(0))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
options = {"lr": args.lr, "weight_decay": args.weight_decay}
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, **options)
other = torch.optim.SGD(nn.Linear(32, 1).parameters(), lr=1.0)  # a small one beside it
loader = DataLoader(
    train, args.batch_size, shuffle=True, drop_last=kind == "drop_last", num_workers=2 * (kind == "workers")
)
num_steps = epochs * math.ceil(len(loader) / k)
if kind == "schedule":
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, num_steps, cycle_momentum=False)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (train[index] for index in torch.randperm(len(train)).tolist())


def read(epoch: int) -> DataLoader[tuple[Tensor, Tensor]]:
    if kind == "made_anew":  # data and loader of each epoch, such as with other augmentations
        shift = 0.01 * torch.randn(len(train), 32, generator=torch.Generator().manual_seed(epoch))
        pairs = TensorDataset(x[train.indices] + shift, y[train.indices])
        return DataLoader(pairs, args.batch_size, shuffle=True)
    return DataLoader(Stream(), args.batch_size) if kind == "stream" else loader


def measure(data: DataLoader[tuple[Tensor, Tensor]]) -> Tensor:
    model.eval()
    with torch.inference_mode(kind == "inference_mode"), torch.no_grad():
        losses = torch.cat([nn.functional.cross_entropy(model(a), b, reduction="none") for a, b in data])
    model.train()
    return losses


def pass_back(images: Tensor, labels: Tensor, samples: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / samples
    loss.backward()


def train_epoch(epoch: int) -> None:
    data, size = read(epoch), args.batch_size * k
    if kind == "zero_first":
        optimizer.zero_grad()
    for number, (images, labels) in enumerate(data, start=1):
        if kind == "zero_before" and (number - 1) % k == 0:
            optimizer.zero_grad()
        pass_back(images, labels, size)
        is_last = number == math.ceil(len(train) / args.batch_size)
        if number % k == 0 or (is_last and kind != "drop_rest"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if kind == "schedule":
                schedule.step()
            if kind != "zero_before":
                optimizer.zero_grad(set_to_none=kind != "plain")
            if kind == "two_optimizers":
                other.step()
        if kind == "evaluates_within" and number % 9 == 0:
            trial.report(scores=measure(DataLoader(val, 100)))
    optimizer.zero_grad()


if kind == "evaluates_first":
    measure(DataLoader(val, 100))
for epoch in range(epochs):
    train_epoch(epoch)
    if kind == "evaluates_training_data":
        measure(DataLoader(ConcatDataset([train]), 300))
        measure(loader)
    if kind == "without_loader":
        with trial.paused():
            losses = measure(zip(x[val.indices].split(50), y[val.indices].split(50), strict=True))
    else:
        losses = measure(DataLoader(val, 100))
    trial.report(scores=losses)
