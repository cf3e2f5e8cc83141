"""Which of the named packages cannot be used here, by all that they require. As a program it prints JSON.

It imports nothing of them: metadata say what a package requires, the import system whether modules are found.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from importlib.util import find_spec


def lacking(package: str) -> list[str]:
    """The packages, this one or what it requires, that are not there. Versions are not judged."""
    missing: list[str] = []
    seen: set[str] = set()
    todo = [package]
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not is_found(name.replace("-", "_")):  # a module on the path needs no metadata
                missing.append(name)
            continue
        if all(is_found(module) for module in modules(found)):
            todo += required(found)
        else:
            missing.append(name)
    return sorted(missing)


def modules(found: metadata.Distribution) -> set[str]:
    """What can be imported of a distribution, by the files that it installed."""
    files = [f for f in found.files or [] if f.suffix in (".py", ".so") and ".." not in f.parts]
    tops = {f.parts[0] if len(f.parts) > 1 else f.name.partition(".")[0] for f in files}
    return {top for top in tops if top.isidentifier() and top not in ("tests", "test", "docs")}


def required(found: metadata.Distribution) -> list[str]:
    """The names of what a distribution requires here, extras aside."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # pip brings its own
        from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]
    wanted = map(Requirement, found.requires or ())
    return [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]


def is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # refused by a hook; a module without a spec
        return False


if __name__ == "__main__":
    print(json.dumps({name: lacking(name) for name in sys.argv[1:]}))
