"""Somebody else's function, called with arguments that the user named: `model.kwargs.width=64`.

What it takes is read from its signature. One that passes `**kwargs` on is called, and watched: what refuses
an argument down there, or takes any and reads none, is asked for its own. Free of torch.
"""

from __future__ import annotations

import ast
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import Parameter, Signature
from types import CodeType, FrameType, ModuleType
from typing import Any

from ampcompare.errors import UserError, did_you_mean

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
# As Python says it (3.11 to 3.14), of its own functions and of those in C.
_UNKNOWN = re.compile(r"(?:(\S+)\(\) got an unexpected|'\w+' is an invalid) keyword argument(?: '(\w+)')?")
_TWICE = re.compile(r"\S+\(\) got multiple values for (?:keyword )?argument '(\w+)'")


def call(
    function: Callable[..., Any], given: Mapping[str, Any], *, key: str, name: str, ours: Mapping[str, Any]
) -> Any:
    """What the function returns for the user's arguments, which `key` (`model.kwargs`) gives to `name`.

    `ours` are arguments that it gets where its signature takes them, by name or as `**kwargs`, and the user
    does not set them. One without a signature is called as is. Raises UserError for an argument that it does
    not take, or lacks; whatever else the function raises goes on.
    """
    signature = signature_of(function)
    if signature is not None and isinstance(function, partial):  # what it sets is no longer to be given
        left = [p for p in signature.parameters.values() if p.name not in function.keywords]
        signature = signature.replace(parameters=left)
    if signature is not None:
        ours = {k: v for k, v in ours.items() if takes(signature, k)}
    arguments = {**ours, **given}
    if signature is not None:
        _check(signature, arguments, given, key, name)
    own = [p.name for p in signature.parameters.values() if p.kind in NAMED] if signature else []
    watch = _Watch(set(given) - set(own)) if signature else _Watch(set())
    try:
        with watch:
            made = function(**arguments)
    except TypeError as problem:
        if refusal := _refusal(problem, own, given, key, name):
            raise refusal from None
        raise
    for unread in sorted(watch.unread.keys() - watch.read):
        raise _no_such(unread, [*own, *watch.unread[unread]], key, name)
    return made


def signature_of(function: Callable[..., Any]) -> Signature | None:
    """Its signature, None where it has none that can be read (some in C, odd callables)."""
    try:
        return inspect.signature(function)
    except Exception:  # a property of the author's may raise anything
        return None


def takes(signature: Signature, name: str) -> bool:
    """Whether an argument may be given by this name."""
    found = signature.parameters.get(name)
    return (found is not None and found.kind in NAMED) or _is_open(signature)


def _is_open(signature: Signature) -> bool:
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())


def _check(
    signature: Signature, arguments: Mapping[str, Any], given: Mapping[str, Any], key: str, name: str
) -> None:
    named = [p for p in signature.parameters.values() if p.kind in NAMED]
    if not _is_open(signature):
        known = [p.name for p in named]
        for unknown in (argument for argument in given if argument not in known):
            raise _no_such(unknown, known, key, name)
    for parameter in named:
        if parameter.default is Parameter.empty and parameter.name not in arguments:
            at = f"{key}.{parameter.name}"
            raise UserError(f"{at}: missing, {name} cannot be called without it; set {at}=...")


def _no_such(unknown: str, known: Iterable[str], key: str, name: str) -> UserError:
    known = list(dict.fromkeys(known))
    near = did_you_mean(unknown, known)
    what = f"it takes {', '.join(known)}" if known else "it takes none"
    return UserError(f"{key}.{unknown}: {name} has no such argument; {what}" + (f"; {near}" if near else ""))


def _refusal(
    problem: TypeError, own: Sequence[str], given: Mapping[str, Any], key: str, name: str
) -> UserError | None:
    """The line for an argument that something below the function refused; None where it is another error."""
    said = str(problem)
    given = {argument: value for argument, value in given.items() if argument not in own}
    if (twice := _TWICE.match(said)) and twice[1] in given:
        return UserError(f"{key}.{twice[1]}: {name} sets it itself; leave it out")
    if not (unknown := _UNKNOWN.match(said)):
        return None
    refused = unknown[2] or said.split("'")[1]
    if refused not in given:
        return None
    frames, trace = [], problem.__traceback__
    while trace := trace and trace.tb_next:  # without our own frame
        frames.append(trace.tb_frame)
    passed = _passed(frames[-1], unknown[1]) if frames and unknown[1] else []
    return _no_such(refused, [*own, *(k for frame in frames for k in _taken_out(frame)), *passed], key, name)


class _Watch:
    """While inside: which of the names are given to a function that takes any and does not read them
    (`unread`, with the names that might have been meant), and which one has as its own (`read`).
    """

    def __init__(self, names: set[str]) -> None:
        self.names, self.read = names, set[str]()
        self.unread: dict[str, list[str]] = {}
        self._before: Any = None

    def __enter__(self) -> None:
        if self.names:
            self._before = sys.getprofile()
            sys.setprofile(self._on_event)

    def __exit__(self, *_: object) -> None:
        if self.names:
            sys.setprofile(self._before)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or frame.f_back is None:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        self.read |= self.names.intersection(code.co_varnames[code.co_posonlyargcount : count])
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            return
        rest = code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]
        lost = self.names.intersection(frame.f_locals.get(rest, ()))
        if lost and _reads(code, rest):
            # Of the called function itself alone: from it nothing else has been given them beside.
            read = _all_taken_out(frame) if frame.f_back.f_code is call.__code__ else None
            lost = set() if read is None else lost - read
        if lost:
            above = []
            at: FrameType | None = frame.f_back
            while at and at.f_code is not call.__code__:
                above.append(at)
                at = at.f_back
            taken = [name for one in (*reversed(above), frame) for name in _taken_out(one)]
            known = [*taken, *_passed(frame.f_back, code.co_qualname)]
            self.unread |= dict.fromkeys(lost, known)


def _reads(code: CodeType, name: str) -> bool:
    """Whether a function does anything with one of its arguments."""
    if name in code.co_cellvars or "locals" in code.co_names:
        return True
    found = (step.argval for step in dis.get_instructions(code))
    return any(name == value or (isinstance(value, tuple) and name in value) for value in found)


def _passed(frame: FrameType, name: str) -> list[str]:
    """What the function that the frame called by this name takes, without what it has no default for: that is
    given by those above it.
    """
    below = _callee(frame, name)
    return [p.name for p in below.parameters.values() if p.default is not Parameter.empty] if below else []


def _callee(frame: FrameType, name: str) -> Signature | None:
    """The signature of what the frame called by that qualified name, `Net.__init__`."""
    first = name.partition(".")[0]
    values = [*frame.f_locals.values(), *frame.f_globals.values()]
    values += [vars(v).get(first) for v in values if isinstance(v, ModuleType)]
    for value in values:
        with suppress(Exception):  # a variable may be anything
            made = value.__init__ if isinstance(value, type) else value  # type: ignore[misc]
            if getattr(made, "__qualname__", None) == name and (found := signature_of(value)):
                return found
    return None


def _taken_out(frame: FrameType) -> Iterator[str]:
    """The names that the frame's function takes out of its `**kwargs` before it passes them on."""
    if function := _function_of(frame):
        yield from _takes(*function)


def _all_taken_out(frame: FrameType) -> set[str] | None:
    """The same where it does nothing else with them, so that it reads no other name; None where it does."""
    if not (function := _function_of(frame)):
        return None
    node, rest = function
    names = list(_takes(node, rest))
    uses = sum(isinstance(part, ast.Name) and part.id == rest for part in ast.walk(node))
    return set(names) if len(names) == uses else None


def _function_of(frame: FrameType) -> tuple[ast.FunctionDef, str] | None:
    """The frame's function as it is written, and how it calls its `**kwargs`."""
    try:
        (function, *_) = ast.parse(textwrap.dedent(inspect.getsource(frame.f_code))).body
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError):
        return None
    if not isinstance(function, ast.FunctionDef) or function.args.kwarg is None:
        return None
    return function, function.args.kwarg.arg


def _takes(function: ast.FunctionDef, rest: str) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id=owner), attr="pop" | "get" | "setdefault"),
                    args=[ast.Constant(value=str(name)), *_],
                )
                | ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name)))
                | ast.Compare(
                    left=ast.Constant(value=str(name)),
                    ops=[ast.In() | ast.NotIn()],
                    comparators=[ast.Name(id=owner)],
                )
            ) if owner == rest:
                yield name
