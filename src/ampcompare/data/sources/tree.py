"""The files of a folder or an archive by their relative paths, and how their paths become classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampcompare.data.sources.decode import SUFFIXES, is_image
from ampcompare.errors import UserError

SPLITS = ("train", "test")
EXPECTED = "train/<class>/<image> and test/<class>/<image>"

log = logging.getLogger("ampcompare")


@dataclass(frozen=True)
class Tree:
    """Paths as tuples of names, hidden ones left out; `read` gives a file's bytes and is asked once for each.

    `where` names the source in messages, `data.root='...'`.
    """

    where: str
    files: list[tuple[str, ...]]
    folders: set[tuple[str, ...]]
    read: Callable[[str], bytes]


@dataclass(frozen=True)
class Layout:
    """Sorted class names, and for each split its image paths with the class index of each."""

    classes: tuple[str, ...]
    paths: dict[str, list[str]]
    labels: dict[str, list[int]]


def is_hidden(path: Iterable[str]) -> bool:
    """Hidden files, and what macOS adds to archives, are no data."""
    return any(name.startswith(".") or name == "__MACOSX" for name in path)


def arrange(tree: Tree) -> Layout:
    """Sort a tree of train/<class>/<image> and test/<class>/<image> into classes, by name throughout.

    Files that are no images by their names are left out, and so is what lies beside train/ and test/; one
    warning says so. Raises UserError, naming the place, for a split or a class that is missing on one side,
    a class without images, and an image or a folder at the wrong depth.
    """
    images = sorted(path for path in tree.files if path[0] in SPLITS and is_image(path[-1]))
    folders = sorted(path for path in tree.folders if path[0] in SPLITS)
    misplaced = [path for path in images if len(path) != 3] + [path for path in folders if len(path) > 2]
    if misplaced:
        raise UserError(f"{tree.where}: {'/'.join(misplaced[0])!r} is out of place: expected {EXPECTED}")
    classes = _classes(tree, folders, images)
    skipped = sorted(set(tree.files).difference(images))
    if skipped:
        said = "%s: left out %d files that are no images of train/ or test/, the first is %r"
        log.warning(said, tree.where, len(skipped), "/".join(skipped[0]))
    index = {name: i for i, name in enumerate(classes)}
    paths = {split: ["/".join(path) for path in images if path[0] == split] for split in SPLITS}
    labels = {split: [index[path[1]] for path in images if path[0] == split] for split in SPLITS}
    return Layout(classes, paths, labels)


def _classes(tree: Tree, folders: list[tuple[str, ...]], images: list[tuple[str, ...]]) -> tuple[str, ...]:
    for split in SPLITS:
        if (split,) not in folders:
            found = ", ".join(sorted({path[0] for path in [*tree.folders, *tree.files]})[:5]) or "nothing"
            what = f"there is no folder {split!r} in it (found: {found})"
            raise UserError(f"{tree.where}: {what}: expected {EXPECTED}")
    train, test = ({path[1] for path in folders if len(path) == 2 and path[0] == split} for split in SPLITS)
    for name in sorted(train ^ test):
        has, lacks = SPLITS if name in train else SPLITS[::-1]
        what = f"class folder {name!r} is in {has!r} but not in {lacks!r}"
        raise UserError(f"{tree.where}: {what}: each class needs images in both")
    if not train:
        what = "there are no class folders in 'train' and 'test'"
        raise UserError(f"{tree.where}: {what}: expected {EXPECTED}")
    filled = {path[:2] for path in images}
    for folder in folders:
        if len(folder) == 2 and folder not in filled:
            todo = f"add some ({', '.join(SUFFIXES)}) or remove the class from both sides"
            raise UserError(f"{tree.where}: class folder {'/'.join(folder)!r} has no images: {todo}")
    return tuple(sorted(train))
