"""Two ranks, which torchrun starts."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sweep

trial = sweep.trial(batch_size=16, lr=0.05)
distributed.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1000, 32)
y = (x @ torch.randn(32, 5)).argmax(1)
train = TensorDataset(x[:800], y[:800])
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=trial.lr)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(train, trial.batch_size, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model.module(x[800:]), y[800:])
        model.train()
        trial.report(val_loss=loss.item())
distributed.destroy_process_group()
