"""Small real data sets for the tests, and the shared one where it lies beside the checkout."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_files import Files, write_folder

from ampcompare.data.dataset import Dataset, build_dataset

REAL_ARCHIVE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cifar10-jpeg.tar.xz"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(folder))
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def png() -> Callable[..., bytes]:
    """An encoded image of random pixels: `png(seed, height, width)`."""

    def make(seed: int = 0, height: int = 6, width: int = 5) -> bytes:
        return encode(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))

    return make


@pytest.fixture
def files(png: Callable[..., bytes]) -> Files:
    """A data set of two classes, three training and two test images each, with awkward names."""
    paths = [
        f"{split}/{name}/bild {i} ä.png"
        for split, count in (("train", 3), ("test", 2))
        for name in ("schwäne", "two words")
        for i in range(count)
    ]
    return {path: png(seed) for seed, path in enumerate(paths)}


@pytest.fixture
def folder(tmp_path: Path, files: Files) -> Path:
    return write_folder(tmp_path / "a folder ü", files)


@dataclass(frozen=True)
class RealLoad:
    """The 60,000 images, and the memory that their first load took in a process of its own."""

    dataset: Dataset
    first_peak_mib: float
    cache: Path


FIRST_LOAD = """
import sys
import torch
from ampcompare.data.dataset import build_dataset
from ampcompare.measure.memory import peak_of_process
build_dataset("image_folder", sys.argv[1])
print(peak_of_process())
"""


@pytest.fixture(scope="session")
def real_archive() -> Path:
    if not REAL_ARCHIVE.exists():
        reason = f"the shared CIFAR-10 archive is not there: {REAL_ARCHIVE.name}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return REAL_ARCHIVE


@pytest.fixture(scope="session")
def real(real_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> RealLoad:
    """Decoded once a session into a cache that the tests of real data share."""
    cache = tmp_path_factory.mktemp("real-cache")
    environment = {**os.environ, "AMPCOMPARE_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_LOAD, str(real_archive)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMPCOMPARE_CACHE", str(cache))
        return RealLoad(build_dataset("image_folder", str(real_archive)), float(done.stdout), cache)
