"""Where images come from: every source is declared here once, and all else asks `SOURCES`.

A new source is one new file and one entry. One that comes from elsewhere (`ampcompare.plugins`) is a function
`build(train)` that returns the images of a split, uint8 [N, 3, H, W], and their labels, int64 [N]. The
entries load neither torch nor NumPy, so that the options, `--help` and the report may ask them too; a
source's own file is imported when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ampcompare import plugins

if TYPE_CHECKING:
    from ampcompare.data.arrays import Arrays

# Called with data.root, data.train_limit and data.test_limit, null as None. The limits are applied to
# whatever it returns; they are there for sources that make images, which need not make more.
Load = Callable[["str | None", "int | None", "int | None"], "Arrays"]


@dataclass(frozen=True)
class Source:
    """What everything else needs to know of a place where images come from."""

    name: str  # data.source
    label: str  # in sentences and charts
    short: str  # in a run's name
    load: Load  # raises UserError for whatever is wrong with the data
    root: str = ""  # what data.root is to it, for --help; empty: it has none
    needs_root: bool = False  # it then tells which data it is, and reports name it
    is_made_up: bool = False  # data that no claim can rest on
    test_images: int = 0  # of the whole test split, where that is always the same
    classes: int = 0  # likewise


def _from_root(module: str) -> Load:
    """`load(root)` of a module here."""
    return lambda root, *limits: import_module(f"{__name__}.{module}").load(root)


def _synthetic(root: str | None, train_limit: int | None, test_limit: int | None) -> Arrays:
    from ampcompare.data.sources import synthetic

    counts = ((train_limit, synthetic.TRAIN_COUNT), (test_limit, synthetic.TEST_COUNT))
    return synthetic.load(*(most if limit is None else min(limit, most) for limit, most in counts))


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "cifar10",
            "CIFAR-10",
            "cifar",
            _from_root("cifar10"),
            root="folder of cifar-10-python.tar.gz",
            test_images=10_000,
            classes=10,
        ),
        Source(
            "image_folder",
            "image folder",
            "images",
            _from_root("image_folder"),
            root="folder or archive with train/<class>/* and test/<class>/*",
            needs_root=True,
        ),
        Source(
            "synthetic",
            "synthetic data",
            "synthetic",
            _synthetic,
            is_made_up=True,
            test_images=10_000,
            classes=10,
        ),
    )
}


def source_of(name: str) -> Source:
    """The source of that name; one from elsewhere is imported when it is loaded. Raises UserError."""
    if name in SOURCES:
        return SOURCES[name]
    if not plugins.DATA.takes(name):
        raise plugins.DATA.unknown(name, SOURCES)
    return Source(name, label_of(name), plugins.short(name), lambda *_: _built(name))


def label_of(name: str) -> str:
    """A source as readers see it, also one that this installation lacks: records name what others trained
    on. Of a file the last part alone: a report leaves the machine.
    """
    return SOURCES[name].label if name in SOURCES else name.rpartition("/")[2].replace("_", " ")


def _built(name: str) -> Arrays:
    """What the function of that name returns for both splits."""
    import numpy as np

    from ampcompare.data.arrays import Arrays

    found = plugins.load(plugins.DATA, name)

    def split(train: bool) -> tuple[np.ndarray, np.ndarray]:
        with plugins.blame(plugins.DATA, name, f"no images and labels for train={train}", found.file):
            images, labels = found.value(train)
            # Tensors are made of them, which take no view that runs backwards.
            return np.ascontiguousarray(images), np.ascontiguousarray(labels)

    try:
        return Arrays.of(split(True), split(False))
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as problem:
        raise plugins.DATA.refusal(name, str(problem)) from None
