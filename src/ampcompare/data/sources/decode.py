"""From encoded images, all of one size, to one uint8 array."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from ampcompare.data.sources.bounds import MAX_IMAGE_PIXELS, gib, memory_budget_bytes
from ampcompare.errors import UserError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
# Only decoders of plain pictures: Pillow would also hand an EPS file to Ghostscript, which runs programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# More than 8 bits a channel: converting to RGB would clip the values without a word.
DEEP_MODES = ("I", "F")


def is_image(path: str) -> bool:
    """Whether the name ends like that of an image."""
    return path.lower().endswith(SUFFIXES)


def decode_images(
    splits: Sequence[Sequence[str]], read: Callable[[str], bytes], where: str
) -> list[np.ndarray]:
    """Decode each split's images to RGB: a list of uint8 [N, 3, H, W], one size throughout.

    splits: the images' paths; read: path to encoded bytes, asked for once a path; where: how messages name
    the source. Raises UserError naming the first image that does not decode, is not of the first one's
    size, or is larger than 16.8 million pixels, and for a data set that would not fit into memory.
    """
    results: list[np.ndarray] = []
    first, size = splits[0][0], (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for paths in splits:
            for i, path in enumerate(paths):
                image = _open(read(path), path, where)
                if size == (0, 0):
                    size = image.size
                    _check_total(sum(map(len, splits)), size, where)
                if image.size != size:
                    raise UserError(
                        f"{where}: image {path!r} is {_by(image.size)} pixels but {first!r} is {_by(size)}: "
                        "all images must have one size; resize them first"
                    )
                if i == 0:
                    results.append(np.empty((len(paths), 3, size[1], size[0]), np.uint8))
                results[-1][i] = _pixels(image, path, where).transpose(2, 0, 1)
    return results


def _open(data: bytes, path: str, where: str) -> Image.Image:
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(path, where) from None
    except Exception as error:  # a decoder meets damage as any of a dozen exception types
        raise _undecodable(path, where, "no image in a known format", error) from error
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise _too_large(path, where)
    if image.mode.startswith(DEEP_MODES):
        raise UserError(f"{where}: image {path!r} has more than 8 bits a channel: convert it to 8 bits first")
    return image


def _pixels(image: Image.Image, path: str, where: str) -> np.ndarray:
    try:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # as above
        raise _undecodable(path, where, str(error) or type(error).__name__, error) from error


def _undecodable(path: str, where: str, reason: str, error: Exception) -> UserError:
    if isinstance(error, MemoryError):
        reason = "out of memory"
    return UserError(f"{where}: image {path!r} does not decode ({reason}): replace it or remove it")


def _too_large(path: str, where: str) -> UserError:
    most = f"{MAX_IMAGE_PIXELS:,} pixels"
    return UserError(f"{where}: image {path!r} has more than {most}: resize it or remove it")


def _check_total(count: int, size: tuple[int, int], where: str) -> None:
    needed, budget = count * 3 * size[0] * size[1], memory_budget_bytes()
    if needed > budget:
        raise UserError(
            f"{where}: {count:,} images of {_by(size)} pixels need {gib(needed)} of memory, of which this "
            f"machine can give {gib(budget)}: resize them or leave some out"
        )


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
