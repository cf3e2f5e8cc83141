"""Where images come from: every source is declared here once, and all else asks `SOURCES`.

A new source is one new file and one entry. One that comes from elsewhere (`ampcompare.plugins`) is a function
that `data.given` calls. The entries load neither torch nor NumPy, so that the options, `--help` and the
report may ask them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ampcompare import plugins

if TYPE_CHECKING:
    from ampcompare.data.dataset import Dataset


@dataclass(frozen=True)
class Source:
    """What everything else needs to know of a place where data come from."""

    name: str  # data.source
    label: str  # in sentences and charts
    short_name: str  # in a run's name
    # What loads it, or its name here (None: `data.given`), called with what it takes of `data.kwargs`,
    # `root`, `train_limit` and `test_limit`: limits for those that make images, which need not make more. It
    # raises UserError for whatever is wrong with the data.
    load: Callable[..., Dataset] | str | None = None
    root: str = ""  # what data.root is to it, for --help; empty: it has none
    needs_root: bool = False  # it then tells which data it is, and reports name it
    is_synthetic: bool = False  # data that no claim can rest on
    train_images: int = 0  # of the whole training split, where that is always the same
    test_images: int = 0  # likewise
    classes: int = 0  # likewise

    @property
    def loader(self) -> Callable[..., Dataset]:
        found: Any = resolve_name(f"{__name__}.{self.load}") if isinstance(self.load, str) else self.load
        return found


_SIZES: dict[str, Any] = {"train_images": 50_000, "test_images": 10_000}
_TEN: dict[str, Any] = {"root": "folder of cifar-10-python.tar.gz", "classes": 10, **_SIZES}
_HUNDRED: dict[str, Any] = {"root": "folder of cifar-100-python.tar.gz", "classes": 100, **_SIZES}
_SYNTHETIC: dict[str, Any] = {"is_synthetic": True, "classes": 10, **_SIZES}
_FOLDER = "folder or archive with train/<class>/* and test/<class>/*"
_BUILT_IN = (
    Source("cifar10", "CIFAR-10", "cifar", "cifar10:load", **_TEN),
    Source("cifar100", "CIFAR-100", "cifar100", "cifar10:load_100", **_HUNDRED),
    Source("image_folder", "image folder", "images", "image_folder:load", _FOLDER, needs_root=True),
    Source("synthetic", "synthetic data", "synthetic", "synthetic:load", **_SYNTHETIC),
)
SOURCES: dict[str, Source] = {source.name: source for source in _BUILT_IN}


def get_source(name: str) -> Source:
    """The source of that name; one from elsewhere is imported when it is loaded. Raises UserError."""
    if name in SOURCES:
        return SOURCES[name]
    if not plugins.DATA.accepts(name):
        raise plugins.DATA.make_unknown_error(name, SOURCES)
    return Source(name, get_source_label(name), plugins.shorten_name(name))


def get_source_label(name: str) -> str:
    """A source as readers see it, also one that this installation lacks: records name what others trained
    on. Of a file the last part alone: a report leaves the machine.
    """
    return SOURCES[name].label if name in SOURCES else name.rpartition("/")[2]
