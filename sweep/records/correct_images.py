"""Which validation images a trial's last evaluation got right, as text: one bit per image, packed and compressed.

Accuracies of two configurations on the same images are not independent; how far they are not is in these bits.
"""

import base64
import binascii
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Correct = npt.NDArray[np.bool_]  # shape [images], in the order of the validation split
# The images that given trials of a study got right, by number; trials without that on record are left out.
FindCorrect = Callable[[str, Sequence[int]], dict[int, Correct]]

# Of a larger split nothing is kept: its sampling error is a tenth of a point at most, and a record stays below 40 kB.
MAX_IMAGES = 200_000


def encode_correct(correct: Correct) -> str:
    """``correct`` as ``"<images>:<base64>"``; empty for more than ``MAX_IMAGES``, and for none."""
    if not 0 < len(correct) <= MAX_IMAGES:
        return ""
    return f"{len(correct)}:{base64.b64encode(zlib.compress(np.packbits(correct).tobytes())).decode()}"


def decode_correct(text: str) -> Correct:
    """The inverse of :func:`encode_correct`.

    Raises:
        ValueError: ``text`` is anything else.
    """
    count, _, packed = text.partition(":")
    num_images = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    if not 0 < num_images <= MAX_IMAGES:
        raise ValueError(f"{text[:50]!r} names no number of images from 1 to {MAX_IMAGES}")
    num_bytes = -(-num_images // 8)
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), num_bytes + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the bits of {num_images} images are damaged: {error}") from None
    if len(unpacked) != num_bytes:
        raise ValueError(f"the bits of {num_images} images are damaged: {len(unpacked)} of {num_bytes} bytes")
    return np.unpackbits(np.frombuffer(unpacked, dtype=np.uint8), count=num_images).astype(np.bool_)
