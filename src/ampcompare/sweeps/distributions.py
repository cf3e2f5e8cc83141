"""What a sweep varies: W&B's eighteen distributions, as lists of values and as quantile functions.

Names and meaning follow W&B's documentation of sweep configurations.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import Field, PlainValidator, create_model

from ampcompare.errors import did_you_mean
from ampcompare.program.checked import Above0, Checked, Number, is_text, refused

Settings = Mapping[str, Any]
MOST_SHOWN = 1000  # values of a grid that are tried one by one
OUTER = 1e-12  # quantile of a distribution without ends that counts as its end
SLACK = 1e-9  # 0.3 / 0.1 is not quite 3


def _plain(value: Any) -> Any:
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        _plain(inner)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not (value is None or isinstance(value, list | dict) or is_number or is_text(value)):
        raise refused("expected text, number, true, false, null or lists of these")
    return value


def _between(s: Settings, u: float) -> float:
    return s["min"] + u * (s["max"] - s["min"])


def _of_values(s: Settings, u: float) -> float:
    return math.exp(_between({end: math.log(s[end]) for end in ("min", "max")}, u))


def _normal(s: Settings, u: float) -> float:
    return NormalDist(s["mu"], s["sigma"]).inv_cdf(min(max(u, OUTER), 1 - OUTER))


def _beta(s: Settings, u: float) -> float:
    from scipy.special import betaincinv

    return float(betaincinv(s["a"], s["b"], u))


Plain = Annotated[Any, PlainValidator(_plain)]
_VALUES = {"values": (Annotated[list[Plain], Field(min_length=1)], ...)}
_RANGE = {"min": (Number, ...), "max": (Number, ...)}
_POSITIVE = {"min": (Above0, ...), "max": (Number, ...)}
_NORMAL = {"mu": (Number, 0.0), "sigma": (Above0, 1.0)}
_LISTED: dict[str, dict[str, Any]] = {
    "constant": {"value": (Plain, ...)},
    "categorical": _VALUES,
    "categorical_w_probabilities": _VALUES | {"probabilities": (list[Number], ...)},
    "int_uniform": {"min": (int, ...), "max": (int, ...)},
}
# By name the settings of a distribution and its value at a quantile, 0 to 1.
_LAWS: dict[str, tuple[dict[str, Any], Callable[[Settings, float], float]]] = {
    # log(1/x) is uniform between min and max; or between log(1/max) and log(1/min), as log(x) is.
    "inv_log_uniform": (_RANGE, lambda s, u: math.exp(-_between(s, u))),
    "inv_log_uniform_values": (_POSITIVE, _of_values),
    "uniform": (_RANGE, _between),
    "log_uniform": (_RANGE, lambda s, u: math.exp(_between(s, u))),
    "log_uniform_values": (_POSITIVE, _of_values),
    "normal": (_NORMAL, _normal),
    "log_normal": (_NORMAL, lambda s, u: math.exp(_normal(s, u))),
    "beta": ({"a": (Above0, ...), "b": (Above0, ...)}, _beta),
}
_SETTINGS = _LISTED | {name: settings for name, (settings, _) in _LAWS.items()}
_SETTINGS |= {f"q_{name}": _SETTINGS[name] | {"q": (Above0, 1)} for name in _LAWS if "inv" not in name}
# By name a model of what it has to be given.
DISTRIBUTIONS: dict[str, type[Checked]] = {
    name: create_model(name, __base__=Checked, distribution=(str | None, None), **settings)
    for name, settings in _SETTINGS.items()
}


def parse_spec(spec: Any) -> tuple[str, dict[str, Any]]:
    """The distribution that a file names or implies, and all its settings. Raises pydantic's errors."""
    kind = _kind_of(spec) if isinstance(spec, Mapping) else None
    if kind is None:
        raise refused("expected {values: [...]}, {value: ...}, {min: ..., max: ...} or a distribution")
    s = DISTRIBUTIONS[kind].model_validate(spec).model_dump(exclude={"distribution"})
    if "min" in s and s["min"] > s["max"]:
        raise refused(f"min={s['min']} is above max={s['max']}; swap them")
    shares = s.get("probabilities")
    if shares and (len(shares) != len(s["values"]) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6):
        raise refused(f"probabilities={shares}: expected one of each value, of at least 0, 1 in all")
    try:
        parameter = Parameter((), kind, s)
        if "q" in s and "min" in s and len(parameter.multiples) == 0:
            raise refused(f"no multiple of q={s['q']} lies in the range")
        if not ("values" in s or "value" in s or all(math.isfinite(parameter.at(u)) for u in (0.0, 1.0))):
            raise OverflowError
    except (OverflowError, ZeroDivisionError):
        raise refused("its values are beyond what a number can hold; narrow it") from None
    return kind, s


def _kind_of(spec: Settings) -> str | None:
    if (name := spec.get("distribution")) is not None:
        if not isinstance(name, str) or name not in DISTRIBUTIONS:
            near = did_you_mean(name, DISTRIBUTIONS) or f"expected one of {', '.join(DISTRIBUTIONS)}"
            raise refused(f"distribution={name!r}: {near}")
        return "categorical_w_probabilities" if name == "categorical" and "probabilities" in spec else name
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical_w_probabilities" if "probabilities" in spec else "categorical"
    if "min" in spec or "max" in spec:
        return "int_uniform" if is_whole(spec.get("min")) and is_whole(spec.get("max")) else "uniform"
    return None


def is_whole(value: Any, low: int | None = None) -> bool:
    """Whether it is an integer (true and false are none), of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)


@dataclass(frozen=True)
class Parameter:
    """One varied option: its names from the top of the file, its distribution and all its settings."""

    path: tuple[str, ...]
    kind: str
    settings: Settings

    @property
    def key(self) -> str:
        """Its dotted name, `optimizer.lr`."""
        return ".".join(self.path)

    @property
    def place(self) -> str:
        """Where it is in its file."""
        return "parameters." + ".parameters.".join(self.path)

    @property
    def is_listed(self) -> bool:
        """Whether it has a list of values, which a grid can run through."""
        return self.kind in ("constant", "categorical", "int_uniform", "q_uniform")

    @cached_property
    def multiples(self) -> range:
        """Those of q that lie between its ends, by number."""
        low, high, q = self._law(0.0), self._law(1.0), self.settings["q"]
        return range(math.ceil(low / q - SLACK), math.floor(high / q + SLACK) + 1)

    def grid_size(self) -> int:
        """How many values a grid takes."""
        return len(self._listed())

    def grid_value(self, index: int) -> Any:
        """The value at a place of the grid."""
        value = self._listed()[index]
        return _multiple(value, self.settings["q"]) if self.kind == "q_uniform" else value

    def values(self) -> list[Any]:
        """Those that a grid takes."""
        return [self.grid_value(index) for index in range(self.grid_size())]

    def _listed(self) -> Sequence[Any]:
        s = self.settings
        if self.kind == "int_uniform":
            return range(s["min"], s["max"] + 1)
        return [s["value"]] if "value" in s else self.multiples if "q" in s else s["values"]

    def at(self, u: float) -> Any:
        """The value at quantile u, 0 to 1."""
        s = self.settings
        if "probabilities" in s:
            reached = [*accumulate(s["probabilities"])]
            return s["values"][min(bisect_right(reached, u), len(reached) - 1)]
        if "q" in s:
            count = round(self._law(u) / s["q"])  # within the range, where there is one
            among = self.multiples if "min" in s else range(count, count + 1)
            return _multiple(min(max(count, among[0]), among[-1]), s["q"])
        if self.is_listed:
            values = self._listed()
            return values[min(int(u * len(values)), len(values) - 1)]
        return self._law(u)

    def _law(self, u: float) -> float:
        """Of the distribution without its q."""
        return _LAWS[self.kind.removeprefix("q_")][1](self.settings, u)

    def examples(self) -> list[Any]:
        """Values that show whether an option would take them all: those that are listed, or the ends."""
        if self.is_listed:
            count = self.grid_size()
            return self.values() if count <= MOST_SHOWN else [self.grid_value(i) for i in (0, count - 1)]
        return [self.at(u) for u in ((0.0, 1.0) if "min" in self.settings else (0.5,))]


def _multiple(count: int, q: float) -> float:
    """`count` times q, without the noise of the last digits; whole where q is."""
    return count * q if isinstance(q, int) else float(f"{count * q:.12g}")


def nested(parameters: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    """The values of the parameters as the tree that W&B hands to the program: groups are dictionaries."""
    tree: dict[str, Any] = {}
    for parameter, value in zip(parameters, values, strict=True):
        inner = tree
        for group in parameter.path[:-1]:
            inner = inner.setdefault(group, {})
        inner[parameter.path[-1]] = value
    return tree
