"""What there is to say of a difference, in sentences, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampcompare.why.diff.answer import CHANCE, Difference, own_size
from ampcompare.why.diff.compare import Errors, Side
from ampcompare.why.diff.measures import Measure

SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "": "-"}
NOT_FINITE = "inf/nan"
LEAST_SHARE = 1e-4  # of the elements of a tensor that is spoken of
SHARES = (("flushed to zero", "flushed"), ("at the largest number of its type", "saturated"))


def short(dtype: str) -> str:
    """A type as it is called: `fp16`."""
    return SHORT.get(dtype, dtype)


def number(value: float) -> str:
    """`4.1e-4`, `0` and `inf/nan`.

    >>> number(0.00041)
    '4.1e-4'
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return NOT_FINITE
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if int(power) else digits


def sentences(found: Difference) -> list[str]:
    """What the table does not say by itself, a sentence each."""
    said = [*_worst(found)]
    for side in found.sides:
        said += _of_side(side, found)
    said += _shares(found)
    if found.not_called:
        said.append(f"not called in this step: {_listed(found.not_called)}")
    return said + _drifted(found)


def _worst(found: Difference) -> list[str]:
    lines = [line for line in found.by_worst() if own_size(line, found.first) > 0]
    if not lines:
        return []
    first = lines[0]
    errors = first.errors[found.first]
    of, worst = max(_parts(errors.own.output, errors.own.gradient, errors.own.parameters), key=_by_size)
    call = f" (call {errors.call + 1} of {first.calls})" if first.calls > 1 else ""
    where = f"{first.title}{call}, under {found.first}"
    if not worst.is_finite:
        return [f"what is not finite arises in {where}: in its {of}"]
    ulps = "" if worst.ulps is None else f", in the median {worst.ulps:.3g} ulps of {short(worst.type)}"
    said = f"most error arises in {where}: {number(worst.size)} of its {of}{ulps}"
    return [
        f"{said}; next {lines[1].title}, {number(own_size(lines[1], found.first))}" if lines[1:] else said
    ]


def _parts(*measures: Measure | None) -> Iterator[tuple[str, Measure]]:
    names = ("output", "gradient", "weights' gradients")
    yield from ((name, m) for name, m in zip(names, measures, strict=True) if m is not None)


def _by_size(part: tuple[str, Measure]) -> float:
    return part[1].size


def _of_side(side: Side, found: Difference) -> list[str]:
    said = []
    if side.first_output:
        said.append(f"the first output that is not finite is that of {side.first_output}")
    if side.first_gradient:
        at = f", at the loss scale of {side.scale:,.6g}" if side.scale != 1 else ""
        said.append(f"the first gradient that is not finite comes from {side.first_gradient}{at}")
    if side.skipped:
        said.append("the step was skipped, nothing was updated")
    elif side.update is not None:
        said.append(_update(side.update, abs(side.loss - found.loss)))
    if side.only_here:
        said.append(f"it calls what fp64 does not: {_listed(side.only_here)}")
    if side.differs:
        ops = ", ".join(side.differs)
        said.append(f"random numbers inside {ops} are others than fp64's, and so the errors larger")
    return [f"{side.label}: {sentence}" for sentence in said]


def _update(update: Measure, loss: float) -> str:
    cosine = "" if update.cosine is None else f" (cosine {cosine_of(update.cosine)})"
    said = f"the loss is off by {number(loss)}, the whole update by {number(update.size)}{cosine}"
    if update.flushed < LEAST_SHARE:
        return said
    return f"{said}, {100 * update.flushed:.2g} % of the weights stand still and should not"


def cosine_of(value: float) -> str:
    """`0.93`, and near 1 how near: `1 - 5.0e-6`."""
    return f"{value:.3g}" if value < 0.99 else f"1 - {number(1 - value)}"


def _shares(found: Difference) -> list[str]:
    """Where most is flushed to zero and at the largest number, for each backend."""
    said = []
    for side in found.sides:
        for what, attribute in SHARES:
            shares = [
                (getattr(measure, attribute), f"the {of} of {line.title}")
                for line in found.lines
                if side.label in line.errors
                for of, measure in _parts(*_in_step(line.errors[side.label]))
            ]
            share, where = max(shares, key=lambda pair: pair[0], default=(0.0, ""))
            if share >= LEAST_SHARE:
                said.append(f"{side.label}: most is {what} in {where}, {100 * share:.2g} %")
    return said


def _in_step(errors: Errors) -> tuple[Measure | None, ...]:
    return errors.output, errors.gradient, errors.parameters


def _drifted(found: Difference) -> list[str]:
    said = []
    chance, between = found.chance, found.between
    if found.drifts and chance is None:
        said.append("the batches come in one order: there is no other one to say what chance does")
    elif chance and between and chance.last and between.last is not None:
        ratio = between.last / chance.last
        more = "less than chance" if ratio < 1 else "more than chance"
        times = f"{ratio:.2g} times what {CHANCE} does to {found.sides[-1].label}"
        said.append(f"after {found.steps} steps the backends' weights have parted by {more}: {times}")
    for label, count in found.skipped.items():
        if count:
            said.append(f"{label}: {count} of {found.steps} steps were skipped")
    return said


def _listed(names: list[str] | tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
