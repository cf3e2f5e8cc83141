"""Plug-ins: backends, networks, data, losses and metrics that users bring.

A plug-in is named as `pkg.mod:Name` or as `./file.py:Name` (relative to the working directory). It is
imported when it is used. A file may import other files of its folder. This module does not import torch.
"""

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ampcompare.errors import UserError, describe_exception, did_you_mean
from ampcompare.plugins.sibling_modules import (
    SiblingModule,
    find_name_conflict,
    find_sibling_modules,
    make_importable,
)

NAME_FORMS = "pkg.mod:Name or ./file.py:Name"
MAX_LISTED = 8  # names of a module in a message


@dataclass(frozen=True)
class PluginKind:
    """One kind of plug-in, such as backends.

    Attributes:
        option: The option that names a plug-in of this kind.
        libraries: Libraries whose parts are plug-ins of this kind, as `library:NAME`.
    """

    option: str
    libraries: tuple[str, ...] = ()

    def make_unknown_error(self, text: str, built_in: Collection[str]) -> UserError:
        """Return the error for a name that is neither built in nor a plug-in."""
        return self.make_error(text, f"expected one of {', '.join([*built_in, *self.list_names()])}")

    def list_names(self) -> list[str]:
        """Return the forms of a name beside the built-in ones."""
        from_libraries = (f"{library}:NAME" for library in self.libraries)
        return [*from_libraries, "pkg.mod:Name", "./file.py:Name"]

    def accepts(self, text: str) -> bool:
        """Return whether the text names a plug-in.

        The plug-in is not imported, so it may still fail to load.

        Raises:
            UserError: The text has the form of a plug-in, but is malformed or names a missing file.
        """
        if not is_object_path(text):
            return False
        left, _, name = text.partition(":")
        if left in self.libraries:
            return True
        is_file = left.endswith(".py")
        if not (is_file or _is_dotted_path(left)) or not _is_dotted_path(name):
            raise self.make_error(text, f"expected {NAME_FORMS}, with one colon")
        if is_file and not os.path.isfile(left):
            raise self.make_error(text, f"there is no file {left} in {Path.cwd()}; expected {NAME_FORMS}")
        return True

    def make_error(self, text: str, why: str) -> UserError:
        """Return an error that begins with the option and its value."""
        return UserError(f"{self.option}={text!r}: {why}")


BACKENDS = PluginKind("backend")
DATA = PluginKind("data.source")
MODELS = PluginKind("model.name", libraries=("timm", "torchvision"))
LOSSES = PluginKind("task.loss")
METRICS = PluginKind("task.metrics")


class InvalidPluginOutput(ValueError):
    """A plug-in returned a value that cannot be used.

    `wrap_plugin_errors` puts the name of the plug-in in front of the message.
    """


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in.

    Attributes:
        value: The Python object that the name stands for.
        source: The first 16 hex digits of the SHA-256 of its file, and of the files of its folder that this
            file imports. For a library: its version.
        file: The file that defines it.
    """

    value: Any
    source: str
    file: Path


_NAMES_BY_FILE: dict[str, str] = {}  # file: how the plug-in was named, such as `model.name='./net.py:build'`


def is_object_path(text: str) -> bool:
    """Return whether the text is the path of a Python object rather than a plain name."""
    return ":" in text


def shorten_name(text: str) -> str:
    """Return the last part of a plug-in's name in a form for run names: `mine-py-build`."""
    return re.sub(r"\W+", "-", text.rpartition("/")[2])


def _is_dotted_path(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def load(kind: PluginKind, text: str) -> Plugin:
    """Import the plug-in that the text names.

    Raises:
        UserError: The name is malformed, or the import fails for any reason.
    """
    if not kind.accepts(text):
        raise kind.make_error(text, f"expected {NAME_FORMS}")
    location = text.partition(":")[0]
    path = Path(location).resolve() if location.endswith(".py") else None
    with wrap_plugin_errors(kind, text, "cannot be imported", path):
        if path is not None:
            file, content = path, path.read_bytes()
            siblings = find_sibling_modules(file, content)
            if conflict := find_name_conflict(siblings):
                raise kind.make_error(text, conflict)
            make_importable(siblings)
            version = _join_contents(content, siblings)
            value = _get_object(kind, text, _import_file(file, content, version))
            for sibling in siblings.values():
                _NAMES_BY_FILE.setdefault(str(sibling.file), f"{kind.option}={text!r}")
        else:
            module = resolve_name(f"{location}:")
            value = _get_object(kind, text, module)
            defined_in = value if inspect.isclass(value) or inspect.isfunction(value) else module
            file = Path(inspect.getfile(defined_in))
            version = file.read_bytes()
        _NAMES_BY_FILE[str(file)] = f"{kind.option}={text!r}"
        return Plugin(value, _hash(version), file)


def _get_object(kind: PluginKind, text: str, module: ModuleType) -> Any:
    """Return the object in its module.

    Raises:
        UserError: The module has no such object.
    """
    location, _, name = text.partition(":")
    try:
        return resolve_name(f"{module.__name__}:{name}")
    except AttributeError:
        hint = did_you_mean(name, vars(module)) or _list_own_names(module)
        hint = f"; {hint}" if hint else ""
        raise kind.make_error(text, f"{location} has no {name}{hint}") from None


def _list_own_names(module: ModuleType) -> str:
    """Return which functions and classes a module defines, for a message; "" if there are none."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    if not own:
        return ""
    more = ", ..." if len(own) > MAX_LISTED else ""
    return f"it has {', '.join(own[:MAX_LISTED])}{more}"


def _import_file(path: Path, content: bytes, version: bytes) -> ModuleType:
    """Import a file as a module; a file that changed becomes another module.

    The source is compiled here rather than read from bytecode, which may be older than the source. The hash
    in a record is therefore the hash of the code that ran.

    Args:
        version: The content, and what identifies the modules that the file imports from its folder.
    """
    name = f"ampcompare_plugin_{path.stem}_{_hash(str(path).encode() + version)}"
    if name not in sys.modules:
        spec: Any = spec_from_file_location(name, path)
        sys.modules[name] = module_from_spec(spec)  # before it runs: dataclasses and pickle look there
        try:
            exec(spec.loader.source_to_code(content, path), vars(sys.modules[name]))  # noqa: S102 - asked for
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return sys.modules[name]


def _join_contents(content: bytes, siblings: Mapping[str, SiblingModule]) -> bytes:
    """Return a file's content, with names and hashes of the modules that it imports from its folder."""
    hashes = {name: _hash(module.content) for name, module in siblings.items() if module.content is not None}
    return content + "".join(f"\0{name} {digest}" for name, digest in hashes.items()).encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def wrap_plugin_errors(kind: PluginKind, text: str, failure: str, path: Path | None = None) -> Iterator[None]:
    """Turn an exception of a plug-in into a UserError that begins with `failure`.

    The error shows the plug-in's traceback. For InvalidPluginOutput it shows the message alone.

    Args:
        text: The name of the plug-in.
        failure: What failed, such as `cannot build the network`.
        path: The plug-in's file. The message gives the last line of this file in the traceback.

    Raises:
        UserError: The code inside the context raised an exception.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except InvalidPluginOutput as problem:
        expected = failure.removeprefix("cannot get ")
        message = str(problem).rpartition("InvalidPluginOutput: ")[2]  # a worker's has its traceback first
        raise kind.make_error(text, f"{expected}: {message}") from None
    except BaseException as problem:  # SystemExit too: it would end the program as if all were well
        error = kind.make_error(text, f"{failure} ({describe_exception(problem, path)})")
        raise error.with_cause(problem) from None


def find_plugin_error(problem: BaseException) -> UserError | None:
    """Return an error that names the plug-in whose code raised, None where no plug-in was involved."""
    for step in extract_tb(problem.__traceback__):
        if step.filename in _NAMES_BY_FILE:
            exception = describe_exception(problem, Path(step.filename))
            return UserError(f"{_NAMES_BY_FILE[step.filename]}: {exception}").with_cause(problem)
    return None


def call(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    key: str,
    name: str,
    defaults: Mapping[str, Any],
) -> Any:
    """Call a plug-in's function with the user's arguments and return its result.

    Args:
        kwargs: The user's arguments.
        key: The option that has the user's arguments, such as `model.kwargs`.
        name: The name of the plug-in.
        defaults: Further arguments. Each is passed if the signature accepts it and the user did not set it.

    Raises:
        UserError: The signature does not accept an argument, or requires one that is missing.
    """
    signature = get_signature(function)
    arguments = {k: v for k, v in defaults.items() if accepts_argument(signature, k)} | dict(kwargs)
    try:
        signature.bind(**arguments)
    except TypeError as problem:
        missing = re.search(r"missing a required argument: '(\w+)'", str(problem))
        action = f"; set {key}.{missing[1]}=VALUE" if missing else ""
        raise UserError(f"{key}: {name}{signature}: {problem}{action}") from None
    return function(**arguments)


def get_signature(function: Callable[..., Any]) -> Signature:
    """Return the function's signature, or `(**anything)` where Python cannot read it (some C functions)."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return Signature([Parameter("anything", Parameter.VAR_KEYWORD)])


def accepts_argument(signature: Signature, name: str) -> bool:
    """Return whether a function with this signature accepts a keyword argument of this name."""
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True
