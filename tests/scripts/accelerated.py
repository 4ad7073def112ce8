"""Accelerate with accumulation, which reads one batch ahead."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sweep

trial = sweep.trial(batch_size=32, accumulation=1, lr=1e-3, weight_decay=0.01)
torch.manual_seed(0)
x = torch.randn(1100, 32)
y = (x @ torch.randn(32, 5)).argmax(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=trial.accumulation)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.lr, weight_decay=trial.weight_decay)
train = DataLoader(TensorDataset(x[:900], y[:900]), trial.batch_size, shuffle=True)
model, optimizer, train, val = accelerator.prepare(
    model, optimizer, train, DataLoader(TensorDataset(x[900:], y[900:]), 100)
)
for _ in range(3):
    model.train()
    for images, labels in train:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        parts = [(nn.functional.cross_entropy(model(a), b), len(b)) for a, b in val]
    trial.report(val_loss=sum(loss.item() * count for loss, count in parts) / 200)
