"""A user's training script, line by line, so that a test can replace some of them; and a study that runs it."""

from pathlib import Path
from typing import Any

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study

NUM_TRAIN, NUM_VAL = 800, 104
LINES = {
    "import": "import sweep\nimport torch\nfrom torch import nn\n"
    "from torch.utils.data import DataLoader, TensorDataset",
    "trial": "trial = sweep.trial(batch_size=16, accumulation=1, lr=0.1, weight_decay=0.0, seed=0)",
    "data": f"made = torch.Generator().manual_seed(1)\nx = torch.randn({NUM_TRAIN + NUM_VAL}, 8, generator=made)\n"
    f"y = (x[:, 0] > 0).long()\ntrain = TensorDataset(x[:{NUM_TRAIN}], y[:{NUM_TRAIN}])\n"
    f"val = TensorDataset(x[{NUM_TRAIN}:], y[{NUM_TRAIN}:])",
    "seed": "torch.manual_seed(trial.seed)",
    "model": "model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))",
    "loader": "loader = DataLoader(train, batch_size=trial.batch_size, shuffle=True)",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=trial.lr, weight_decay=trial.weight_decay)",
    "steps": "split = trial.accumulation",
    "schedule": "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)",
    "begin": "for epoch in range(6):\n    for i, (a, b) in enumerate(loader):",
    "loss": "        loss = nn.functional.cross_entropy(model(a), b) / split\n        loss.backward()",
    "if": "        if (i + 1) % split == 0:",
    "step": "            optimizer.step(); scheduler.step(); optimizer.zero_grad()",
    "end": "    optimizer.zero_grad()",
    "evaluate": "    model.eval()\n    right = torch.cat([model(a).argmax(1) == b for a, b in DataLoader(val, 64)])\n"
    "    model.train()",
    "report": "    trial.report(val_accuracy=right.float().mean().item(), scores=right)",
}


def write_script(folder: Path, **changes: str) -> None:
    (folder / "train.py").write_text("\n".join((LINES | changes).values()) + "\n")


def make_spec(folder: Path, **changes: Any) -> StudySpec:
    script = {"command": "python train.py", "folder": str(folder), "metric": "val_accuracy"}
    space = {
        "batch.micro": {"choice": [16, 32, 64]}, "batch.accumulation": {"choice": [1, 2, 4]},
        "optimizer.lr": {"choice": [0.05, 0.2]}, "optimizer.weight_decay": {"choice": [0.0, 0.01]},
    }  # fmt: skip
    return build_study({"name": "own", "trials": 2, "script": script, "space": space} | changes, "test")
