"""What a model must know about the images."""

from typing import NamedTuple


class ImageShape(NamedTuple):
    """Square images of ``side`` pixels with ``channels`` channels in ``num_classes`` classes."""

    channels: int
    side: int
    num_classes: int
