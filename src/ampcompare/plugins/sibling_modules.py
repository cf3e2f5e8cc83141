"""The modules that a user's file imports from its own folder, such as `layers.py` beside `net.py`.

They are found by reading import statements, without running any code, so that a sweep can watch the files
that its runs import. A run imports the same files and records the hash of the same content. A module whose
name the code computes (`importlib.import_module`) is not found. This module does not import torch.
"""

import ast
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType

INIT = "__init__.py"


@dataclass(frozen=True)
class SiblingModule:
    """A module in the folder of the file that imports it, or in a package of that folder.

    Attributes:
        file: The file. For a package without `__init__.py`: its folder.
        content: What was in the file when it was found; None for a package without `__init__.py`.
    """

    file: Path
    content: bytes | None


def find_sibling_modules(file: Path, content: bytes) -> dict[str, SiblingModule]:
    """Return the modules that a file imports from its folder, and those that they import, by sorted name.

    Imports inside functions count, too. What a file with a syntax error imports is not known.

    Args:
        content: The content of the file.
    """
    if file.is_symlink():
        file = file.resolve()  # its folder is where Python looks for imports
    folder = file.parent
    found: dict[str, SiblingModule] = {}
    unread = [("", SiblingModule(file, content))]
    while unread:
        importer, module = unread.pop()
        for imported in _read_imports(importer, module):
            for name, path in _find_files(folder, imported.split(".")):
                if (
                    name not in found and path != module.file
                ):  # a file that imports its own name means another
                    found[name] = SiblingModule(path, path.read_bytes() if path.is_file() else None)
                    unread.append((name, found[name]))
    return dict(sorted(found.items()))


def _read_imports(name: str, module: SiblingModule) -> Iterator[str]:
    """Yield the dotted names that a module imports: `a.b` and, from `from a import b`, also `a.b`."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Python shows them when it imports the module
            tree = ast.parse(module.content or b"")
    except (SyntaxError, ValueError):
        return
    package = name.split(".") if module.file.name == INIT else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            if not node.level or above:  # a relative import outside a package fails
                base = [*above, node.module] if node.module else above
                yield from (".".join([*base, alias.name]) for alias in node.names)


def _find_files(folder: Path, parts: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules in the folder that Python imports for a dotted name, packages first."""
    packages_without_init: list[tuple[str, Path]] = []
    for count in range(1, len(parts) + 1):
        name, path = ".".join(parts[:count]), folder.joinpath(*parts[:count])
        module = path.with_name(f"{path.name}.py")
        init = path / INIT
        if init.is_file() or module.is_file():
            yield from packages_without_init
            packages_without_init.clear()
            yield name, init if init.is_file() else module
        elif path.is_dir():
            packages_without_init.append((name, path))
        if not path.is_dir() or (module.is_file() and not init.is_file()):
            return


def find_name_conflict(modules: Mapping[str, SiblingModule]) -> str:
    """Return which of these modules has the name of another module, as the end of a message; "" if none."""
    for name, module in modules.items():
        if "." in name:
            continue
        try:
            spec = find_spec(name)
        except ValueError:  # such as `__main__`
            continue
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
        is_namespace = spec is not None and spec.origin is None and name not in sys.modules
        is_same = any(place and os.path.realpath(place) == os.path.realpath(module.file) for place in places)
        if places and not is_same and not is_namespace:
            file = os.path.relpath(module.file.parent if module.file.name == INIT else module.file)
            other = next(place for place in places if place)
            return f"imports {name} from {file}, but there is another {name}: {other}; rename {file}"
    return ""


def make_importable(modules: Mapping[str, SiblingModule]) -> None:
    """Let import statements find these modules; modules whose content has changed are imported again."""
    if any(_IMPORTABLE.get(name, module) != module for name, module in modules.items()):
        for name in modules:
            sys.modules.pop(name, None)
    _IMPORTABLE.update(modules)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


_IMPORTABLE: dict[str, SiblingModule] = {}


class _Loader(SourceFileLoader):
    """Compiles the content that was hashed: the file may have changed, and bytecode may be older."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(_IMPORTABLE[fullname].content or b"", self.path)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        module = _IMPORTABLE.get(fullname)
        if module is None:
            return None
        if module.content is None:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(module.file)]
            return spec
        return spec_from_file_location(fullname, module.file, loader=_Loader(fullname, str(module.file)))


_FINDER = _Finder()
