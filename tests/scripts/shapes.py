"""Draws images of bright rectangles in the layout that Ultralytics reads: shapes.yaml and its folders."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def draw_shapes(folder: Path, num_train: int = 32, num_val: int = 8, side: int = 64) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", num_train), ("val", num_val)):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            width, height = generator.integers(side // 4, side // 2, 2)
            left, top = generator.integers(0, side // 2, 2)
            pixels = generator.integers(0, 60, (side, side, 3), dtype=np.uint8)
            pixels[top : top + height, left : left + width, number % 2] = 250
            Image.fromarray(pixels).save(folder / "images" / part / f"{number}.png")
            box = ((left + width / 2) / side, (top + height / 2) / side, width / side, height / side)
            line = f"{number % 2} {' '.join(f'{each:.5f}' for each in box)}\n"
            (folder / "labels" / part / f"{number}.txt").write_text(line)
    text = f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames: [red, green]\n"
    (folder / "shapes.yaml").write_text(text)


if __name__ == "__main__":
    draw_shapes(Path(sys.argv[1]))
