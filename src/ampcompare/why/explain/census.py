"""In which type everything ran and why: per kind of op, per module, and what was cast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ampcompare.why.explain.reasons import CAST, PARTS, plain_name
from ampcompare.why.explain.trace import BACKWARD, FORWARD, UPDATE, Op, Trace

FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Kind:
    """So many ops of the forward that a Python function led to, in a type, for a reason."""

    function: str
    dtype: str
    why: str
    count: int


@dataclass(frozen=True)
class Casts:
    """The casts of a part of the step: how many tensors, in how many ops, and the bytes these move."""

    phase: str
    tensors: int
    ops: int
    size: float


@dataclass(frozen=True)
class Census:
    """`kinds` of the forward, most frequent first; `modules` the types of each module's forward, by name, in
    order; `casts` by part of the step.
    """

    kinds: tuple[Kind, ...]
    modules: dict[str, tuple[str, ...]]
    casts: tuple[Casts, ...]


@dataclass(frozen=True)
class Difference:
    """What one kind of op does under two backends: (type, reason) of each, most frequent first."""

    function: str
    one: tuple[tuple[str, str], ...]
    other: tuple[tuple[str, str], ...]


def name_of(op: Op) -> str:
    """What a reader calls an op: the Python function that led to it, or the kernel's own name."""
    return plain_name(op.function if op.function and op.function not in PARTS else op.aten)


def take_census(trace: Trace) -> Census:
    """The census of a step: of its forward and loss, and of the casts of all its parts."""
    counted: Counter[tuple[str, str, str]] = Counter()
    modules: dict[str, dict[str, None]] = defaultdict(dict)
    for op in trace.ops:
        if op.phase == FORWARD and not op.cast and op.dtype in FLOATS:
            counted[name_of(op), op.dtype, op.why] += 1
            modules[op.module][op.dtype] = None
    kinds = tuple(Kind(*key, count) for key, count in counted.most_common())
    casts = tuple(_casts(phase, trace.ops) for phase in (FORWARD, BACKWARD, UPDATE))
    return Census(kinds, {name: tuple(dtypes) for name, dtypes in modules.items()}, casts)


def _casts(phase: str, ops: Iterable[Op]) -> Casts:
    found = [op for op in ops if op.phase == phase and op.why == CAST]
    return Casts(phase, sum(op.many for op in found), len(found), sum(op.size for op in found))


def differences(one: Census, other: Census) -> list[Difference]:
    """The kinds of ops whose types are not the same under both, those that most ops are of first."""
    by_function = [_by_function(census) for census in (one, other)]
    names = dict.fromkeys([*by_function[0], *by_function[1]])
    found = []
    for name in names:
        pair = [tuple(kinds.get(name, ())) for kinds in by_function]
        if {dtype for dtype, _ in pair[0]} != {dtype for dtype, _ in pair[1]}:
            found.append(Difference(name, *pair))
    return found


def _by_function(census: Census) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind in census.kinds:
        found[kind.function].append((kind.dtype, kind.why))
    return found
