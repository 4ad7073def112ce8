"""Folders of images in good, bad and odd shape, made from a list of relative paths."""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

_MODES = {"gray": "L", "rgba": "RGBA", "palette": "P", "bit": "1", "cmyk": "CMYK"}


def make_image(kind: str, number: int, size: tuple[int, int] = (8, 8), suffix: str = ".png") -> bytes:
    """The bytes of an image file that differs with ``number``; ``kind`` is a mode or a fault."""
    width, height = size
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if kind == "deep":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    elif kind == "float":
        image, suffix = Image.fromarray(pixels[..., 0].astype(np.float32)), ".tif"
    elif kind == "wide":
        image, suffix = Image.fromarray(pixels[..., 0].astype(np.int32) * 10_000), ".tif"
    elif kind in _MODES:
        image = image.convert(_MODES[kind])
    content = io.BytesIO()
    if kind == "pages":
        image.save(content, "TIFF", save_all=True, append_images=[image])
        return content.getvalue()
    if kind == "rotated":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(content, "JPEG", exif=exif)
        return content.getvalue()
    image.save(content, "JPEG" if suffix.lower() in {".jpg", ".jpeg"} else "TIFF" if suffix == ".tif" else suffix[1:])
    data = content.getvalue()
    return {"cut": data[: len(data) // 2], "empty": b"", "page": b"<html>not found</html>"}.get(kind, data)


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Writes each path with its kind: of an image, text, link:TARGET or folder; ``kind@WxH`` sets a size."""
    for number, (path, kind) in enumerate(sorted(files.items())):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        name, _, size = kind.partition("@")
        if name == "folder":
            place.mkdir(exist_ok=True)
        elif name.startswith("link:"):
            place.symlink_to(name.removeprefix("link:"))
        elif name == "text":
            place.write_text("x")
        else:
            width, height = map(int, (size or "8x8").split("x"))
            place.write_bytes(
                make_image(name, number, (width, height), place.suffix if place.suffix != ".PNG" else ".png")
            )
    return root


def list_images(counts: dict[str, int], kind: str = "rgb", suffix: str = ".png") -> dict[str, str]:
    """``counts`` images in each folder."""
    return {f"{folder}/{number}{suffix}": kind for folder, count in counts.items() for number in range(count)}


def count_files(root: Path) -> int:
    """All files below ``root`` and all links that lead to no folder of their own."""
    return sum(len(names) for _, _, names in os.walk(root))
