"""Parts that other people bring: an entry point's name, `pkg.mod:Name`, or `./file.py:Name`.

What is asked for is imported when it is used, and nothing else is: names are listed from the metadata of
installed distributions. A file's path counts from the working directory. Free of torch.
"""

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ampcompare.errors import UserError, describe_exception, did_you_mean

NAME_FORMS = "pkg.mod:Name or ./file.py:Name"


@dataclass(frozen=True)
class PluginKind:
    """Where one kind of part comes in.

    Attributes:
        option: The option that names a part.
        group: The group of its entry points.
        libraries: Libraries whose own names of parts may be used.
        renamed: What to write in place of names of 0.2, for a part that imports one from ampcompare.
    """

    option: str
    group: str
    libraries: tuple[str, ...] = ()
    renamed: str = ""

    def make_unknown_error(self, text: str, built_in: Collection[str]) -> UserError:
        return self.make_error(text, f"expected one of {', '.join([*built_in, *self.list_names(built_in)])}")

    def list_names(self, built_in: Collection[str]) -> list[str]:
        """What may be asked for beside what is built in, in words: what is installed, and the forms."""
        installed = sorted(entry_points(group=self.group).names - set(built_in))
        ours = (f"{library}:NAME" for library in self.libraries)
        return [*installed, *ours, "pkg.mod:Name", "./file.py:Name"]

    def accepts(self, text: str) -> bool:
        """Whether the text names something from outside. Raises UserError for one that cannot be right, as
        far as that can be told without importing it.
        """
        left, _, name = text.partition(":")
        if not is_object_path(text) or left in self.libraries:
            return is_object_path(text) or text in entry_points(group=self.group).names
        is_file = left.endswith(".py")
        if not (is_file or _is_dotted_path(left)) or not _is_dotted_path(name):
            raise self.make_error(text, f"expected {NAME_FORMS}, with one colon")
        if is_file and not os.path.isfile(left):
            raise self.make_error(
                text, f"{left} is not there (looked for from {Path.cwd()}); expected {NAME_FORMS}"
            )
        return True

    def make_error(self, text: str, why: str) -> UserError:
        return UserError(f"{self.option}={text!r}: {why}")


BACKENDS = PluginKind(
    "backend",
    "ampcompare.backends",
    renamed="write metadata = BackendInfo(...) in place of declares = Backend(...), with BackendInfo from "
    "ampcompare.precision.registry",
)
DATA = PluginKind("data.source", "ampcompare.data")
MODELS = PluginKind("model.name", "ampcompare.models", libraries=("timm", "torchvision"))
LOSSES = PluginKind("task.loss", "ampcompare.losses")
METRICS = PluginKind("task.metrics", "ampcompare.metrics")


class InvalidPluginOutput(ValueError):
    """What somebody's part gave and cannot be used; the message is the rest of a line that names the part."""


@dataclass(frozen=True)
class Plugin:
    """What was found, what tells one version of it from another (the first digits of the SHA-256 of the file
    that it is written in), and that file.
    """

    value: Any
    source: str
    file: Path


_SOURCE_HASHES: dict[type, str] = {}  # of a loaded class, the hash of its file
_NAMES_BY_FILE: dict[str, str] = {}  # by its file, how a part was named: `model.name='./net.py:build'`


def describe_shadowed_plugins(door: PluginKind, built_in: Collection[str]) -> list[str]:
    """A line for what is installed and cannot be had, as it has the name of a built-in part."""
    taken = (entry for entry in entry_points(group=door.group) if entry.name in built_in)
    return [
        f"{door.option}={e.name} is the built-in one; that of {_describe_origin(e)} is left out"
        for e in taken
    ]


def is_object_path(text: str) -> bool:
    """Whether it is the name of a Python object rather than of something that is known."""
    return ":" in text


def shorten_name(text: str) -> str:
    """The last part of the name, as a word that may stand in names of runs: `mine-py-build`."""
    return re.sub(r"\W+", "-", text.rpartition("/")[2])


def _is_dotted_path(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def load(door: PluginKind, text: str) -> Plugin:
    """Import what the text names. Raises UserError for whatever goes wrong in that."""
    target, origin, path = text, "", None
    if is_object_path(text):
        door.accepts(text)
        left = text.partition(":")[0]
        path = Path(left).resolve() if left.endswith(".py") else None
    else:
        entry = _find_entry_point(door, text)
        target, origin = entry.value.partition("[")[0].strip(), f"entry point of {_describe_origin(entry)}: "
    left, _, name = target.partition(":")
    with wrap_plugin_errors(door, text, f"{origin}cannot be imported", path):
        content = path.read_bytes() if path else b""
        module = _import_file(path, content) if path else resolve_name(f"{left}:")
        try:
            value = resolve_name(f"{module.__name__}:{name}")
        except AttributeError:
            near = did_you_mean(name, vars(module))
            raise door.make_error(text, f"{origin}no {name} in {left}{near and '; ' + near}") from None
        made_of = value if inspect.isclass(value) or inspect.isfunction(value) else module
        file = path or Path(inspect.getfile(made_of))
        _NAMES_BY_FILE[str(file)] = f"{door.option}={text!r}"
        source = _hash(content or file.read_bytes())
        if inspect.isclass(value):
            _SOURCE_HASHES[value] = source
        return Plugin(value, source, file)


def get_source_hash(cls: type) -> str:
    """Return the hash of a loaded class's file; "" for a class that was not loaded by a name."""
    return _SOURCE_HASHES.get(cls, "")


def _find_entry_point(door: PluginKind, text: str) -> EntryPoint:
    entries = [*entry_points(group=door.group, name=text)]
    if len(entries) != 1:
        found = " and ".join(sorted(map(_describe_origin, entries))) or "none is installed"
        raise door.make_error(
            text, f"expected one entry point in {door.group}, {found}; or name it as {NAME_FORMS}"
        )
    return entries[0]


def _describe_origin(entry: EntryPoint) -> str:
    return f"{entry.dist and entry.dist.name} ({entry.value})"


def _import_file(path: Path, content: bytes) -> ModuleType:
    """The file as a module, one for each content. No bytecode is read: it may be of an earlier content, and
    the hash in a record is of what ran.
    """
    name = f"ampcompare_plugin_{path.stem}_{_hash(str(path).encode() + content)}"
    if name not in sys.modules:
        spec: Any = spec_from_file_location(name, path)
        sys.modules[name] = module_from_spec(spec)  # before it runs: dataclasses and pickle look there
        try:
            exec(spec.loader.source_to_code(content, path), vars(sys.modules[name]))  # noqa: S102 - asked for
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return sys.modules[name]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def wrap_plugin_errors(door: PluginKind, text: str, what: str, path: Path | None = None) -> Iterator[None]:
    """Whatever somebody else's code raises as a UserError that begins with `what`, such as `no network`, and
    shows where it was; of what is InvalidPluginOutput the reason alone.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except InvalidPluginOutput as problem:
        raise door.make_error(
            text, f"{what.removeprefix('no ')}: {str(problem).rpartition('InvalidPluginOutput: ')[2]}"
        ) from None
    except BaseException as problem:  # SystemExit too: it would end the program as if all were well
        is_renamed = isinstance(problem, ImportError) and str(problem.name).startswith("ampcompare.")
        hint = f"; {door.renamed}" if is_renamed and door.renamed else ""
        error = door.make_error(text, f"{what} ({describe_exception(problem, path)}){hint}")
        raise error.with_cause(problem) from None


def find_plugin_error(problem: BaseException) -> UserError | None:
    """The error for what a part raised while it was used, None for what was raised elsewhere."""
    for step in extract_tb(problem.__traceback__):
        if step.filename in _NAMES_BY_FILE:
            why = describe_exception(problem, Path(step.filename))
            return UserError(f"{_NAMES_BY_FILE[step.filename]}: {why}").with_cause(problem)
    return None


def call(
    function: Callable[..., Any], given: Mapping[str, Any], *, key: str, name: str, ours: Mapping[str, Any]
) -> Any:
    """What the function returns for the user's arguments, which `key` (`model.kwargs`) gives to `name`.

    `ours` are arguments that it gets where its signature takes them, by name or as `**kwargs`, and the user
    does not set them. Raises UserError for an argument that its signature does not take, or lacks; what the
    function raises goes on.
    """
    signature = get_signature(function)
    arguments = {k: v for k, v in ours.items() if accepts_argument(signature, k)} | dict(given)
    try:
        signature.bind(**arguments)
    except TypeError as problem:
        raise UserError(f"{key}: {name}{signature} {problem}") from None
    return function(**arguments)


def get_signature(function: Callable[..., Any]) -> Signature:
    """Its signature; where it has none that can be read (some in C), one that takes anything."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return Signature([Parameter("anything", Parameter.VAR_KEYWORD)])


def accepts_argument(signature: Signature, name: str) -> bool:
    """Whether an argument may be given by this name."""
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True
