"""A YOLO with random weights and no warm-up of its biases, on images of bright rectangles."""

import argparse

from ultralytics import YOLO

import sweep

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="shapes.yaml")
parser.add_argument("--out", default="out")
args = parser.parse_args()

trial = sweep.trial(batch_size=8, lr=0.01, seed=0)
model = YOLO("yolo11n.yaml")
trial.ultralytics(model, "metrics/mAP50-95(B)")
model.train(
    data=args.data, epochs=3, imgsz=64, device="cpu", project=args.out, workers=0, plots=False, warmup_epochs=0,
    batch=trial.batch_size, nbs=trial.batch_size, optimizer="SGD", lr0=trial.lr, seed=trial.seed,
)  # fmt: skip
