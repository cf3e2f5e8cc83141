"""Where images come from: every source is declared here once, and all else asks `SOURCES`.

A new source is one new file and one entry. One that comes from elsewhere (`ampcompare.plugins`) is a function
that `data.given` calls. The entries load neither torch nor NumPy, so that the options, `--help` and the
report may ask them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampcompare import plugins
from ampcompare.errors import UserError

if TYPE_CHECKING:
    from ampcompare.data.splits import Dataset

# Called with data.root, data.train_limit and data.test_limit, null as None, and what of data.kwargs it takes.
# The limits are applied to whatever it returns; they are there for sources that make images, which need not
# make more.
Load = Callable[..., "Dataset"]


@dataclass(frozen=True)
class Source:
    """What everything else needs to know of a place where data come from."""

    name: str  # data.source
    label: str  # in sentences and charts
    short: str  # in a run's name
    load: Load | None = None  # raises UserError for whatever is wrong with the data; None: see `data.given`
    root: str = ""  # what data.root is to it, for --help; empty: it has none
    needs_root: bool = False  # it then tells which data it is, and reports name it
    is_made_up: bool = False  # data that no claim can rest on
    train_images: int = 0  # of the whole training split, where that is always the same
    test_images: int = 0  # likewise
    classes: int = 0  # likewise
    arguments: Mapping[str, range] = field(default_factory=dict)  # what of data.kwargs it takes

    def check(self, kwargs: Mapping[str, Any]) -> None:
        """Raise UserError for one of `data.kwargs` that a built-in source does not take."""
        for key, value in kwargs.items():
            said, allowed = f"data.kwargs.{key}", self.arguments.get(key)
            if allowed is None:
                takes = f"takes {', '.join(self.arguments)}" if self.arguments else "takes none"
                raise UserError(f"{said}: data.source={self.name} {takes}; leave it out")
            if type(value) is not int or value not in allowed:
                expected = f"expected a whole number, {allowed.start} to {allowed.stop - 1}"
                raise UserError(f"{said}={value!r}: {expected}")


def _from(module: str, constant: str = "") -> Load:
    """A source's own file, imported when it is loaded: its `load`."""

    def load(*asked: Any, **kwargs: Any) -> Dataset:
        file: Any = import_module(f"ampcompare.data.sources.{module}")
        which = {"which": getattr(file, constant)} if constant else {}
        return file.load(*asked, **which, **kwargs)

    return load


_SIZES: dict[str, Any] = {"train_images": 50_000, "test_images": 10_000}
_TEN: dict[str, Any] = {"root": "folder of cifar-10-python.tar.gz", "classes": 10, **_SIZES}
_HUNDRED: dict[str, Any] = {"root": "folder of cifar-100-python.tar.gz", "classes": 100, **_SIZES}
_MADE_UP: dict[str, Any] = {"is_made_up": True, "classes": 10, **_SIZES}
_FOLDER = "folder or archive with train/<class>/* and test/<class>/*"
_SIZE = {"size": range(8, 1025)}
_EVERY = (
    Source("cifar10", "CIFAR-10", "cifar", _from("cifar10", "CIFAR10"), **_TEN),
    Source("cifar100", "CIFAR-100", "cifar100", _from("cifar10", "CIFAR100"), **_HUNDRED),
    Source("image_folder", "image folder", "images", _from("image_folder"), _FOLDER, needs_root=True),
    Source("synthetic", "synthetic data", "synthetic", _from("synthetic"), arguments=_SIZE, **_MADE_UP),
)
SOURCES: dict[str, Source] = {source.name: source for source in _EVERY}


def source_of(name: str) -> Source:
    """The source of that name; one from elsewhere is imported when it is loaded. Raises UserError."""
    if name in SOURCES:
        return SOURCES[name]
    if not plugins.DATA.takes(name):
        raise plugins.DATA.unknown(name, SOURCES)
    return Source(name, label_of(name), plugins.short(name))


def label_of(name: str) -> str:
    """A source as readers see it, also one that this installation lacks: records name what others trained
    on. Of a file the last part alone: a report leaves the machine.
    """
    return SOURCES[name].label if name in SOURCES else name.rpartition("/")[2].replace("_", " ")
