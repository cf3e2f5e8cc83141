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

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.records.tree import lookup

MOST_BYTES = 2 * 2**20  # two million images; CIFAR-10's 10,000 take 10 kB
NAME = metrics.PREDICTIONS_FILE
Download = Callable[[], bytes | None]


@dataclass(frozen=True)
class Predictions:
    """`classes`: the class that a run gave to each test image, integers [N] in the order of the test set;
    None where it kept none, or none that can be used: then `problem` says why. `test_set` names the images.
    """

    classes: np.ndarray | None = None
    test_set: str = ""
    problem: str = ""


class Unusable(Exception):
    """Why something of a run cannot be used, as the end of a sentence."""


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
    test_set = lookup(summary, metrics.TEST_SET)
    if not isinstance(test_set, str) or not test_set:  # from before there were any, or of another program
        return Predictions()
    try:
        content = download() if download else _newest(paths)
        return Predictions() if content is None else Predictions(_parse(content, images, classes), test_set)
    except Unusable as problem:
        return Predictions(problem=f"Its {NAME} {problem}.")


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
    check_size(len(content))
    return content


def check_size(size: int) -> None:
    """Raise Unusable for too much."""
    if size > MOST_BYTES:
        raise Unusable(f"is larger than {MOST_BYTES // 2**20} MiB and was not read")


def _parse(content: bytes, images: float | None, count: float | None) -> np.ndarray:
    """The answers in a `.npy` file, [N], held to the recorded test set. Raises Unusable."""
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (
        Exception
    ):  # a header is Python's text: SyntaxError, tokenize.TokenError, KeyError, MemoryError, ...
        raise Unusable("is no whole NumPy array") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.ndim != 1:
        raise Unusable("does not hold one whole number for each image")
    if images is not None and len(found) != images:
        raise Unusable(f"holds {len(found):,} answers for {images:,.0f} test images")
    if not len(found) or int(found.min()) < 0 or (count is not None and int(found.max()) >= count):
        raise Unusable("holds no answer, or one that is none of the classes")
    return found
