"""What the parts need and this machine has: packages, wheels that were brought along, images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu import ROOT

WHEELS = ROOT / ".whl"  # both folders are ignored by git
IMAGES = ROOT / ".data"
CIFAR10 = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
# Kept by an earlier run, or torchvision's address of it answers.
CIFAR10_IS_HAD = """
import sys, urllib.request as web
from ampcompare.program.files import cache_folder
folder = cache_folder()
if not (any(folder.glob("cifar10-*.npz")) or any((folder / name).exists() for name in sys.argv[1:])):
    from torchvision.datasets import CIFAR10
    web.urlopen(web.Request(CIFAR10.url, method="HEAD"), timeout=8)
"""


def environment(*brought: Path) -> dict[str, str]:
    """A part's environment: our sources first, then what was brought along, then what was there."""
    paths = (str(ROOT / "src"), *map(str, brought), os.environ.get("PYTHONPATH", ""))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def lacks(packages: Iterable[str], env: dict[str, str]) -> dict[str, str]:
    """By package, in words, what is missing of it in `env`; packages that can be used are left out."""
    names = sorted(set(packages))
    probe = [sys.executable, str(Path(__file__).with_name("probe.py")), *names]
    done = subprocess.run(probe, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return {
        name: name if name in missing else f"{', '.join(missing)} (for {name})"
        for name, missing in found.items()
        if missing
    }


def install_wheels(site: Path, wheels: Path | None = None) -> str:
    """Unpack the wheels into `site`, once for each set of them; returns a line on it, "" for nothing to do.

    A folder on PYTHONPATH and no virtual environment: the Python that has PyTorch stays as it is.
    """
    wheels = wheels or WHEELS
    files = sorted(wheels.glob("*.whl"))
    if not files:
        return ""
    stamp = site / "wheels.json"
    wanted = json.dumps([[file.name, file.stat().st_size] for file in files] + [sys.version])
    if stamp.is_file() and stamp.read_text() == wanted:
        return ""
    fresh = site.with_name(f"{site.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    how = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--disable-pip-version-check", "-q")
    command = [sys.executable, "-m", "pip", "install", *how, "--target", str(fresh), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"wheels in {wheels}: not installed ({said})"
    (fresh / stamp.name).write_text(wanted)
    shutil.rmtree(site, ignore_errors=True)
    fresh.rename(site)
    return f"wheels in {wheels}: {len(files)} installed"


@dataclass(frozen=True)
class Images:
    """The options of a training that say where its images are; `lack` says in words why there are none."""

    words: tuple[str, ...] = ()
    lack: str = ""

    @property
    def are_made(self) -> bool:
        """Whether there is nothing to decode or fetch."""
        return self.source == "synthetic"

    @property
    def source(self) -> str:
        return self._value("data.source")

    @property
    def root(self) -> str:
        return self._value("data.root")

    def _value(self, key: str) -> str:
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{key}=")), "")


def find_images(data: str, env: dict[str, str], brought: Path = IMAGES) -> Images:
    """What `--data` means here. Nothing is decoded or fetched yet."""
    if data == "synthetic":
        return Images(("data.source=synthetic", "data.train_limit=50000", "data.test_limit=10000"))
    if data != "cifar10":
        return at(Path(data).resolve())
    if brought.is_dir() and any(brought.iterdir()):
        return within(brought)
    if is_had(env):
        return Images(("data.source=cifar10",))
    return Images(
        lack=f"images (CIFAR-10 cannot be fetched: put an archive into {brought.name}/ or give --data PATH)"
    )


def at(path: Path) -> Images:
    """A folder or archive of images, or a folder with CIFAR-10 as its authors publish it."""
    if not path.exists():
        return Images(lack=f"images ({path}: no such file or folder)")
    if path.is_dir() and any((path / name).exists() for name in CIFAR10):
        return Images(("data.source=cifar10", f"data.root={path}"))
    return Images(("data.source=image_folder", f"data.root={path}"))


def within(folder: Path) -> Images:
    """What lies in the folder for images that were brought along."""
    archives = [p for p in folder.iterdir() if p.name.endswith(ARCHIVES)]
    if any((folder / name).exists() for name in (*CIFAR10, "train")):
        return at(folder)
    if len(archives) == 1:
        return at(archives[0])
    return Images(
        lack=f"images ({len(archives)} archives in {folder.name}/: put one there or give --data PATH)"
    )


def is_had(env: dict[str, str]) -> bool:
    """Whether CIFAR-10 is in the cache or can be fetched."""
    command = [sys.executable, "-c", CIFAR10_IS_HAD, *CIFAR10]
    try:
        return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
