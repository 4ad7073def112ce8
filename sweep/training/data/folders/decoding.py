"""An image file as pixels: opened with care, converted to RGB, and brought to one size. No torch here."""

import io
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sweep.config.errors import InputError
from sweep.training.data.images import Pixels

Resize = Literal["crop", "stretch", "pad"]
# Whatever a file is called, no other reader is tried: some that Pillow has start programs.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
_MAX_PIXELS = 2**27  # of one image; decoded it takes 400 MB, in each of eight threads
_ORIENTATION = 0x0112  # the EXIF tag
_BILINEAR = Image.Resampling.BILINEAR


def decode_image(path: str, side: int, resize: Resize | None) -> Pixels:
    """The image as RGB, (side, side, 3).

    ``resize``: crop (short side to ``side``, center square, as torchvision's Resize and CenterCrop), stretch (both
    sides to ``side``) or pad (long side to ``side``, black borders); None: it must have that size already.

    Raises:
        InputError: the file cannot be decoded, or has another size where none may be changed.
    """
    with _open(path, Path(path)) as image:
        if image.size != (side, side) and resize is None:
            raise InputError(
                f"{path} is {image.width} x {image.height} pixels, the first image {side} x {side}; "
                "set data.image_size to bring all to one size."
            )
        try:
            rgb = _convert_to_rgb(image)
            return np.asarray(rgb if rgb.size == (side, side) else _bring_to_size(rgb, side, resize or "crop"))
        except (MemoryError, InputError):
            raise
        except Exception as error:  # a damaged or hostile file makes a decoder raise anything
            raise InputError(f"{path} cannot be decoded: {error}.") from None


class ImageHeader(NamedTuple):
    """What an image file states of itself."""

    width: int
    height: int
    mode: str  # of Pillow
    traits: tuple[str, ...]  # I: 16 bits a pixel; rotated: by EXIF; frames: more than one


def inspect_image(name: str, content: bytes) -> ImageHeader:
    """The header of the image file ``name``, after decoding all of its ``content``.

    Raises:
        InputError: it cannot be decoded.
    """
    with _open(name, io.BytesIO(content)) as image:
        mode = image.mode
        try:
            image.load()
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise InputError(f"{name} cannot be decoded: {error}.") from None
        if mode == "F":
            raise InputError(f"{name} has floating-point pixels, whose range is unknown; save it with 8 bits.")
        if mode == "I" and not _has_16_bits(image):
            raise InputError(f"{name} has pixels of 32 bits, whose range is unknown; save it with 8 bits.")
        is_rotated = image.getexif().get(_ORIENTATION, 1) != 1
        traits = {"I": mode.startswith("I"), "rotated": is_rotated, "frames": getattr(image, "is_animated", False)}
        return ImageHeader(image.width, image.height, mode, tuple(name for name, has in traits.items() if has))


def _has_16_bits(image: Image.Image) -> bool:
    low, high = np.asarray(image).min(), np.asarray(image).max()
    return bool(low >= 0 and high < 2**16)


def _open(name: str, source: Path | io.BytesIO) -> Image.Image:
    try:
        image = Image.open(source, formats=_FORMATS)
    except Image.DecompressionBombError:
        raise InputError(_too_large(name)) from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is no readable image: its content is none of {', '.join(_FORMATS)}.") from None
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise InputError(f"{name} is no readable image: {error}.") from None
    if image.width * image.height > _MAX_PIXELS:
        image.close()
        raise InputError(_too_large(name))
    return image


def _too_large(name: str) -> str:
    return f"{name} has more than {_MAX_PIXELS} pixels; make it smaller or remove it."


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        # 16 bits a pixel; Pillow's own conversion would cut all above 255 to white
        levels = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
    return image.convert("RGB")


def _bring_to_size(image: Image.Image, side: int, resize: Resize) -> Image.Image:
    if resize == "stretch":
        return image.resize((side, side), _BILINEAR)
    if resize == "pad":
        return ImageOps.pad(image, (side, side), _BILINEAR)
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    # cropped first: a resize with a box still mixes in pixels around the box
    return image.crop((left, top, left + edge, top + edge)).resize((side, side), _BILINEAR)
