"""What a run answered to each test image, read back from its files: on the disk, or from W&B's server.

The file may come from anywhere and hold anything. It is read whole only if it is small enough; nothing in it
is run (no pickle); what is wrong with it is a sentence.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.records.tree import lookup

MOST_BYTES = 2 * 2**20  # two million images; CIFAR-10's 10,000 take 10 kB
NAME = metrics.PREDICTIONS_FILE
Download = Callable[[str, int], bytes | None]  # a file by its name, of so many bytes at most


@dataclass(frozen=True)
class Predictions:
    """`classes`: the class that a run gave to each test image, integers [N] in the order of the test set;
    None where it kept none, or none that can be used: then `problem` says why. `test_set` names the images.
    """

    classes: np.ndarray | None = None
    test_set: str = ""
    problem: str = ""


class Unusable(Exception):
    """Why predictions cannot be used, as a sentence."""


def read_predictions(
    summary: Mapping[str, Any],
    paths: Sequence[Path],
    download: Download | None,
    *,
    images: float | None,
    classes: float | None,
) -> Predictions:
    """The predictions of a run's last evaluation: fetched, or from beside its files. Nothing is raised.

    `images` and `classes` are how many there are, where that is known.
    """
    if not keeps_predictions(summary):
        return Predictions()
    test_set = str(lookup(summary, metrics.TEST_SET))
    try:
        content = download(NAME, MOST_BYTES) if download else _newest(paths)
        if content is None:
            return Predictions()
        found = parse(content)
        _check(found, images, classes)
    except Unusable as problem:
        return Predictions(problem=f"Its {NAME} {problem}.")
    return Predictions(found, test_set)


def keeps_predictions(summary: Mapping[str, Any]) -> bool:
    """Whether a run may have some: not one from before there were any, or of another program."""
    test_set = lookup(summary, metrics.TEST_SET)
    return isinstance(test_set, str) and bool(test_set)


def _newest(paths: Sequence[Path]) -> bytes | None:
    """The file of the latest part of a run on the disk that has one. Raises Unusable."""
    for path in reversed(paths):
        try:
            return read_small(path.parent / "files" / NAME)
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise Unusable(f"cannot be read ({reason(problem)})") from None
    return None


def read_small(path: Path) -> bytes:
    """The content of a plain file that is small enough. Raises OSError, Unusable."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block for ever
        raise Unusable("is not a plain file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Unusable(too_large())
    return content


def too_large() -> str:
    """What is wrong with a file that is not read whole."""
    return f"is larger than {MOST_BYTES // 2**20} MiB and was not read"


def parse(content: bytes) -> np.ndarray:
    """The whole numbers in a `.npy` file, [N]. Raises Unusable.

    By NumPy's own reader of the header, not by `numpy.load`: that makes an array of whatever length the
    header claims before it looks whether the file has as much.
    """
    file = io.BytesIO(content)
    try:
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[
            npy.read_magic(file)
        ]
        shape, _, dtype = read_header(file)
    except (
        Exception
    ):  # a header is Python's text: SyntaxError, tokenize.TokenError, KeyError, MemoryError, ...
        raise Unusable("is no NumPy array") from None
    if dtype.kind not in "iu" or len(shape) != 1:
        raise Unusable(f"holds {dtype} {list(shape)}, not one whole number for each image")
    rest = content[file.tell() :]
    if len(rest) < shape[0] * dtype.itemsize:
        raise Unusable("is cut off")
    if len(rest) > shape[0] * dtype.itemsize or not shape[0]:
        raise Unusable("holds more or less than its header says")
    return np.frombuffer(rest, dtype)


def _check(classes: np.ndarray, images: float | None, count: float | None) -> None:
    """Raise Unusable where they are not those of the recorded test set."""
    if images is not None and len(classes) != images:
        raise Unusable(f"holds {len(classes):,} answers for {images:,.0f} test images")
    if int(classes.min()) < 0 or (count is not None and int(classes.max()) >= count):
        raise Unusable("holds an answer that is none of the classes")
