"""Small real data sets for the tests."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.outside import Outside
from support.own_data import OWN
from torch.utils.data import _utils


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def _short_waits() -> Iterator[None]:
    """PyTorch waits 5 s for a worker of a DataLoader that has been left, also after the test that left it."""
    with pytest.MonkeyPatch.context() as patch:
        Outside(patch).replace(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with `data.py`, a data plug-in."""
    (tmp_path / "data.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Return a function that encodes random pixels: `png(seed, height, width)`."""

    def make(seed: int = 0, height: int = 6, width: int = 5) -> bytes:
        pixels, buffer = (
            np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8),
            io.BytesIO(),
        )
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    return make


@pytest.fixture
def files(png: Callable[..., bytes]) -> dict[str, bytes]:
    """Return a data set of two classes, three training and two test images each, with awkward names."""
    paths = [
        f"{split}/{name}/bild {i} ä.png"
        for split, count in (("train", 3), ("test", 2))
        for name in ("schwäne", "two words")
        for i in range(count)
    ]
    return {path: png(seed) for seed, path in enumerate(paths)}


@pytest.fixture
def folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """Return the folder of the data set."""
    root = tmp_path / "a folder ü"
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
