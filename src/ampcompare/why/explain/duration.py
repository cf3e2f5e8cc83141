"""How long a step takes by what it computes and moves, what bounds it, and what would raise the speed-up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampcompare.report.words import of_all
from ampcompare.why.explain.census import name_of
from ampcompare.why.explain.reasons import CAST
from ampcompare.why.explain.speeds import Speeds
from ampcompare.why.explain.trace import OPTIMIZER, UPDATE, Op, Trace

CASTS, STEP = "casts", "optimizer step"
TILE = 8  # of channels: what tensor cores take at a time in fp16 and bf16


@dataclass(frozen=True)
class Part:
    """What ops come to: seconds, bytes, FLOP, how many; `moving` the seconds of those that memory bounds."""

    seconds: float
    size: float
    flop: float
    count: int
    moving: float


@dataclass(frozen=True)
class Duration:
    """A step's forecast: `seconds` in all, by kind of op and by module, longest first."""

    seconds: float
    by_kind: dict[str, Part]
    by_module: dict[str, Part]

    @property
    def size(self) -> float:
        return sum(part.size for part in self.by_kind.values())

    @property
    def moving(self) -> float:
        """Seconds of the ops that memory bounds: those that more arithmetic a second would not shorten."""
        return sum(part.moving for part in self.by_kind.values())


def take_duration(trace: Trace, speeds: Speeds) -> Duration:
    """The forecast of a traced step at these speeds."""
    by_kind = _summed(trace.ops, speeds, _kind)
    by_module = _summed(trace.ops, speeds, lambda op: op.module)
    return Duration(sum(part.seconds for part in by_kind.values()), by_kind, by_module)


def _kind(op: Op) -> str:
    if op.why == CAST:
        return CASTS
    if op.phase == UPDATE and op.module == OPTIMIZER:
        return STEP
    return name_of(op)


def _summed(ops: Iterable[Op], speeds: Speeds, key: Callable[[Op], str]) -> dict[str, Part]:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0, 0.0])
    for op in ops:
        seconds = speeds.seconds(op)
        sums = found[key(op)]
        sums[0] += seconds
        sums[1] += op.size
        sums[2] += op.flop
        sums[3] += 1
        sums[4] += seconds if speeds.moving(op) >= speeds.arithmetic(op) else 0.0
    parts = {name: Part(s[0], s[1], s[2], int(s[3]), s[4]) for name, s in found.items()}
    return dict(sorted(parts.items(), key=lambda pair: -pair[1].seconds))


def in_ms(seconds: float) -> str:
    """Seconds as milliseconds, in three digits or, of long ones, in whole ones."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def bounds(base: Duration, other: Duration, words: str) -> list[str]:
    """The forecast of the speed-up and what bounds it, each a sentence with its figures."""
    ceiling = base.seconds / other.seconds if other.seconds else 1.0
    said = [
        f"{words}: {in_ms(base.seconds)} ms a step go to {in_ms(other.seconds)} ms, "
        f"a speed-up of {ceiling:.2f}{'' if ceiling >= 1 else ': it is slower'}."
    ]
    if other.moving:
        most = base.seconds / other.moving
        said.append(
            f"{of_all(other.moving / other.seconds)} of that time goes to ops that memory bounds, so that "
            f"faster arithmetic alone would stop at {most:.2f}."
        )
    bound = [(name, part) for name, part in other.by_kind.items() if part.moving > 0.5 * part.seconds]
    if bound and other.size:
        name, part = max(bound, key=lambda pair: pair[1].size)
        said.append(
            f"{of_all(part.size / other.size)} of the bytes are {name}, which stays memory-bound "
            f"({of_all(part.seconds / other.seconds)} of the time)."
        )
    casts = other.by_kind.get(CASTS)
    if casts and casts.seconds > 0.005 * other.seconds:
        share = casts.seconds / other.seconds
        said.append(f"{casts.count} casts cost {in_ms(casts.seconds)} ms, {of_all(share)} of the step.")
    return said
