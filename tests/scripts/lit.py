"""Lightning with accumulation, a sanity check and a progress bar, as they are by default."""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sweep

trial = sweep.trial(batch_size=32, accumulation=1, lr=0.05, weight_decay=0.0)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], _number: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=trial.lr, weight_decay=trial.weight_decay)


torch.manual_seed(0)
x = torch.randn(1100, 32)
y = (x @ torch.randn(32, 5)).argmax(1)
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=3, accumulate_grad_batches=trial.accumulation, logger=False,
    enable_checkpointing=False, callbacks=[trial.lightning("val_loss")],
)  # fmt: skip
trainer.fit(
    Model(),
    DataLoader(TensorDataset(x[:900], y[:900]), trial.batch_size, shuffle=True),
    DataLoader(TensorDataset(x[900:], y[900:]), 100),
)
