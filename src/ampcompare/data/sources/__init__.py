"""The declarations of the data sources, SOURCES.

A new source is a module and an entry. The function of a plug-in (`ampcompare.plugins`) is called by
`data.user_data`. This module imports neither torch nor NumPy, so that options, `--help` and the report can
use it.
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
    """The declaration of a data source.

    Attributes:
        name: The value of `data.source`.
        label: Its name in sentences and charts.
        short_name: Its name in the names of runs.
        load: A function, or its path in this package, that returns the data or raises UserError. It gets
            those of `data.kwargs`, `root`, `train_limit` and `test_limit` that it accepts; the limits are for
            sources that generate images. None for a plug-in.
        root: The meaning of `data.root`, for --help; "" if the source has none.
        needs_root: Whether `data.root` is required. Then it distinguishes data, and reports show it.
        is_synthetic: Whether the data is synthetic, so that no claim can rest on it.
        train_images: The size of the training split, 0 if it varies.
        test_images: The size of the test split, 0 if it varies.
        classes: The number of classes, 0 if it varies.
    """

    name: str
    label: str
    short_name: str
    load: Callable[..., Dataset] | str | None = None
    root: str = ""
    needs_root: bool = False
    is_synthetic: bool = False
    train_images: int = 0
    test_images: int = 0
    classes: int = 0

    @property
    def loader(self) -> Callable[..., Dataset]:
        """The function `load`, imported if it is a path."""
        load: Any = resolve_name(f"{__name__}.{self.load}") if isinstance(self.load, str) else self.load
        return load


_SIZES: dict[str, Any] = {"train_images": 50_000, "test_images": 10_000}
_TEN: dict[str, Any] = {"root": "the folder with cifar-10-python.tar.gz", "classes": 10, **_SIZES}
_HUNDRED: dict[str, Any] = {"root": "the folder with cifar-100-python.tar.gz", "classes": 100, **_SIZES}
_SYNTHETIC: dict[str, Any] = {"is_synthetic": True, "classes": 10, **_SIZES}
_FOLDER = "a folder or archive with train/<class>/* and test/<class>/*"
_BUILT_IN = (
    Source("cifar10", "CIFAR-10", "cifar", "cifar10:load", **_TEN),
    Source("cifar100", "CIFAR-100", "cifar100", "cifar10:load_cifar100", **_HUNDRED),
    Source("image_folder", "image folder", "images", "image_folder:load", _FOLDER, needs_root=True),
    Source("synthetic", "synthetic data", "synthetic", "synthetic:load", **_SYNTHETIC),
)
SOURCES: dict[str, Source] = {source.name: source for source in _BUILT_IN}


def get_source(name: str) -> Source:
    """Return a source by name. A plug-in is not imported yet.

    Raises:
        UserError: There is no such source.
    """
    if name in SOURCES:
        return SOURCES[name]
    if not plugins.DATA.accepts(name):
        raise plugins.DATA.make_unknown_error(name, SOURCES)
    return Source(name, get_source_label(name), plugins.shorten_name(name))


def get_source_label(name: str) -> str:
    """Return the label of a source, which need not be installed here.

    For a plug-in it is the name without folders, since reports should not show paths.
    """
    return SOURCES[name].label if name in SOURCES else name.rpartition("/")[2]
