"""A model of timm in a plain loop, with transforms of torchvision."""

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

import sweep

trial = sweep.trial(batch_size=16, lr=0.01)
torch.manual_seed(0)
flip, x, y = v2.RandomHorizontalFlip(), torch.randn(120, 3, 32, 32), torch.arange(120) % 2
model = timm.create_model("resnet10t", num_classes=2)
optimizer = torch.optim.SGD(model.parameters(), lr=trial.lr, momentum=0.9)
train = DataLoader(TensorDataset(x[:100], y[:100]), trial.batch_size, shuffle=True, drop_last=True)
for _ in range(4):
    model.train()
    for images, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(flip(images)), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(a).argmax(1) == b for a, b in DataLoader(TensorDataset(x[100:], y[100:]), 10)])
    trial.report(scores=right)
