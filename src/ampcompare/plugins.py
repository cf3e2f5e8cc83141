"""Parts that other people bring: an entry point's name, `pkg.mod:Name`, or `./file.py:Name`.

What is asked for is imported when it is used, and nothing else is: names are listed from the metadata of
installed distributions. A file's path counts from the working directory. Free of torch.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import types
from collections.abc import Collection, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcompare.errors import UserError, reason

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

FORMS = "pkg.mod:Name or ./file.py:Name"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")  # of a module, and of what is in it
_NAME_IN_LIBRARY = re.compile(r"\w+(\.\w+)*")  # timm's: flexivit_base.300ep_in1k
_HASH_DIGITS = 16
_MOST_SAID = 300  # characters of what an exception says


@dataclass(frozen=True)
class Door:
    """Where one kind of part comes in: the option that names it, and the group of its entry points."""

    option: str
    group: str
    libraries: tuple[str, ...] = ()  # of which a part may be named by the library's own name for it

    def names(self, built_in: Collection[str]) -> list[str]:
        """What may be asked for beside what is built in, in words: what is installed, and the forms."""
        ours = (f"{library}:NAME" for library in self.libraries)
        return [*sorted(installed(self).keys() - set(built_in)), *ours, "pkg.mod:Name", "./file.py:Name"]

    def takes(self, text: str) -> bool:
        """Whether the text names something from outside. Raises UserError for one that cannot be right."""
        if is_object(text):
            check_name(self, text)
            return True
        return text in installed(self)

    def unknown(self, text: str, built_in: Collection[str]) -> UserError:
        return self.refusal(text, f"expected one of {', '.join([*built_in, *self.names(built_in)])}")

    def refusal(self, text: str, why: str) -> UserError:
        return UserError(f"{self.option}={text!r}: {why}")


BACKENDS = Door("backend", "ampcompare.backends")
DATA = Door("data.source", "ampcompare.data")
MODELS = Door("model.name", "ampcompare.models", libraries=("timm", "torchvision"))
LOSSES = Door("task.loss", "ampcompare.losses")
METRICS = Door("task.metrics", "ampcompare.metrics")


@dataclass(frozen=True)
class Plugin:
    """What was found, the file that it is written in, and the first digits of that one's SHA-256."""

    value: Any
    source: str
    file: Path


def installed(door: Door) -> dict[str, list[EntryPoint]]:
    """The entry points of a group by name, without importing any. Two distributions may have one name."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in _scan(door)[0]:
        found.setdefault(entry.name, []).append(entry)
    return found


def _scan(door: Door) -> tuple[list[EntryPoint], list[str]]:
    """The entry points of a group, and a line for each that cannot be: unreadable, or of an impossible name.

    `importlib.metadata.entry_points` would raise for all because of one.
    """
    from importlib.metadata import distributions

    found: dict[tuple[str, str], EntryPoint] = {}
    broken = []
    for distribution in distributions():
        try:
            entries = distribution.entry_points.select(group=door.group)
        except Exception as problem:
            what = f"the entry points of {_name_of(distribution)} cannot be read"
            broken.append(f"{what} ({what_happened(problem)})")
            continue
        for entry in entries:
            if is_object(entry.name) or "${" in entry.name or not entry.name.isprintable():
                broken.append(
                    f"{door.option}={entry.name!r} of {_origin(entry)} is left out: no such name works"
                )
            else:
                found.setdefault((entry.name, entry.value), entry)
    # One may lie on the path twice.
    return [found[key] for key in sorted(found)], list(dict.fromkeys(broken))


def is_object(text: str) -> bool:
    """Whether it is the name of a Python object rather than of something that is known."""
    return ":" in text


def short(text: str) -> str:
    """The last part of the name, as a word that may stand in names of runs: `mine-py-build`."""
    return re.sub(r"\W+", "-", text.rpartition("/")[2])


def check_name(door: Door, text: str) -> None:
    """Raise UserError unless the text may name a part: all that can be told without importing it."""
    left, _, name = text.partition(":")
    if left in door.libraries:
        if not _NAME_IN_LIBRARY.fullmatch(name):
            raise door.refusal(text, f"expected {left}:NAME, a name that {left} lists")
        return
    if not left or not _NAME.fullmatch(name) or not (_is_file(left) or _NAME.fullmatch(left)):
        raise door.refusal(text, f"expected {FORMS}, with one colon")
    if _is_file(left):
        _path_of(door, text, left)


def load(door: Door, text: str) -> Plugin:
    """Import what the text names. Raises UserError, one line, for whatever goes wrong in that."""
    where, target = "", text
    if not is_object(text):
        entries = installed(door).get(text, [])
        if not entries:
            raise door.refusal(text, f"no such entry point in {door.group}; expected {FORMS}")
        if len(entries) > 1:
            names = " and ".join(_origin(entry) for entry in entries)
            raise door.refusal(text, f"{names} both have it; name one of them in full")
        (entry,) = entries
        where, target = f"entry point of {_origin(entry)}: ", entry.value.partition("[")[0].strip()
        if not is_object(target) or _is_file(target.partition(":")[0]):
            raise door.refusal(text, f"{where}names no object; its author has to write pkg.mod:Name")
    else:
        check_name(door, text)
    left, _, name = target.partition(":")
    path = _path_of(door, text, left) if _is_file(left) else None
    with blame(door, text, f"{where}cannot be imported", path), chdir("."):  # which a module may leave
        content = path.read_bytes() if path else b""
        module = _module_of_file(path, content) if path else import_module(left)
    with blame(door, text, f"{where}{name} cannot be taken from {left}", path):
        try:
            value = reduce(getattr, name.split("."), module)
        except AttributeError:
            made_here = (
                k for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
            )
            has = f"it has {', '.join(islice(made_here, 5)) or 'no class or function'}"
            raise door.refusal(text, f"{where}no {name} in {left}; {has}") from None
        file = path or _file_of(door, text, value, module)
        return Plugin(value, _hash(content) if path else _hash_of_module(file), file)


@contextmanager
def blame(door: Door, text: str, what: str, path: Path | None = None) -> Iterator[None]:
    """Whatever somebody else's code raises as one line, a UserError that begins with `what`."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as problem:  # SystemExit too: it would end the program as if all were well
        raise door.refusal(text, f"{what} ({what_happened(problem, path)})") from None


def left_out(door: Door, built_in: Collection[str]) -> list[str]:
    """A line for what is installed and cannot be had: it has the name of a built-in part, or is broken."""
    entries, broken = _scan(door)
    taken = (entry for entry in entries if entry.name in built_in)
    lines = (f"{door.option}={e.name} is the built-in one; that of {_origin(e)} is left out" for e in taken)
    return [*lines, *broken]


def _origin(entry: EntryPoint) -> str:
    return f"{_name_of(entry.dist)} ({entry.value})"


def _name_of(distribution: Distribution | None) -> str:
    """Its metadata may be missing or broken, too."""
    name = None
    with suppress(Exception):
        name = distribution.name if distribution else None
    return name or "a distribution without a name"


def _is_file(left: str) -> bool:
    return "/" in left or left.endswith(".py")


def _path_of(door: Door, text: str, left: str) -> Path:
    path = Path(left)
    if not left.endswith(".py"):
        raise door.refusal(text, f"{left} is no Python file; expected ./file.py:Name")
    try:
        if path.is_file():
            return path.resolve()
        what = "is a folder" if path.is_dir() else f"is not there (looked for from {Path.cwd()})"
    except (OSError, ValueError) as problem:  # a NUL in it, a name too long
        what = f"cannot be looked for ({reason(problem)})"
    raise door.refusal(text, f"{left} {what}; expected ./file.py:Name")


def _module_of_file(path: Path, content: bytes) -> types.ModuleType:
    """The file as a module, one for each content.

    Python's own loader may take bytecode that it kept of an earlier content; the hash in the record has to be
    of what runs.
    """
    name = f"ampcompare_plugin_{path.stem}_{_hash(str(path).encode() + content)}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look there
    try:
        # dont_inherit: else this module's `from __future__ import annotations` would hold in the file, too
        code = compile(content, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - the user named this file to be run
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]


@cache
def _hash_of_module(file: Path) -> str:
    """Taken once, as a module is imported once: its file may be edited while that runs."""
    return _hash(file.read_bytes())


def _file_of(door: Door, text: str, value: Any, module: types.ModuleType) -> Path:
    for one in (value, module):
        try:
            return Path(inspect.getfile(one))
        except (TypeError, OSError):
            continue
    raise door.refusal(text, "has no file, so that no record can say what ran")


def what_happened(problem: BaseException, path: Path | None = None) -> str:
    """The kind of the exception, its first line, and the last line of the plug-in's own file on the way; of
    one that another caused, which says more ("is killed by signal: Killed"), that one's first line too.
    """
    import traceback

    if isinstance(problem, SyntaxError) and problem.lineno:
        elsewhere = "" if problem.filename == str(path) else f"{problem.filename}, "
        return f"{elsewhere}line {problem.lineno}: {problem.msg}"
    line, cause = _first_line(problem), problem.__cause__
    said = f"{type(problem).__name__}: {line}" if line else type(problem).__name__
    if cause is not None and (why := _first_line(cause)) and why not in said:
        said += f", from {type(cause).__name__}: {why}"
    trail = traceback.extract_tb(problem.__traceback__)
    own = [frame.lineno for frame in trail if frame.filename == str(path)]
    return f"line {own[-1]}: {said}" if own else said


def _first_line(problem: BaseException) -> str:
    try:
        lines = str(problem).strip().splitlines()
    except Exception:  # its author's mistake, too
        return ""
    return lines[0][:_MOST_SAID] if lines else ""
