"""The parameters of a sweep: W&B's eighteen distributions, as lists of values and as quantile functions.

Names, settings and defaults follow W&B's package `sweeps` 0.3.0 (config/schema.json, params.py). One default
differs: `q` is the integer 1 instead of 1.0, so that draws of a distribution without `q` are integers.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, create_model

from ampcompare.errors import did_you_mean
from ampcompare.runtime.strict_model import Above0, Number, StrictModel, is_text, validation_error

Settings = Mapping[str, Any]
MAX_EXAMPLES = 1000  # values of a grid that are tried one by one
OUTER = 1e-12  # the quantile that counts as the end of a distribution without ends
TRIED = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles at which a distribution has to have a finite value
SLACK = 1e-9  # 0.3 / 0.1 is not quite 3


def _plain(value: Any) -> Any:
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            _plain(inner)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not (value is None or isinstance(value, list | dict) or is_number or is_text(value)):
        raise validation_error("expected text, number, true, false, null or lists of these")
    return value


def _between(s: Settings, u: float, scale: Callable[[float], float] = float) -> float:
    low, high = scale(s["min"]), scale(s["max"])
    return low + u * (high - low)


def _log_values(s: Settings, u: float) -> float:
    return math.exp(_between(s, u, math.log))


def _normal(s: Settings, u: float) -> float:
    return NormalDist(s["mu"], s["sigma"]).inv_cdf(min(max(u, OUTER), 1 - OUTER))


def _beta(s: Settings, u: float) -> float:
    from scipy.special import betaincinv

    return float(betaincinv(s["a"], s["b"], u))


def whole(value: Any) -> Any:
    """Return a whole number that is written as 27.0 as an int, as JSON Schema's `integer` takes it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]
Plain = Annotated[Any, PlainValidator(_plain)]
_VALUES = {"values": (Annotated[list[Plain], Field(min_length=1)], ...)}
_RANGE = {"min": (Number, ...), "max": (Number, ...)}
_POSITIVE = {"min": (Above0, ...), "max": (Number, ...)}
_NORMAL = {"mu": (Number, 0.0), "sigma": (Above0, 1.0)}
_SETTINGS: dict[str, dict[str, Any]] = {
    "constant": {"value": (Plain, ...)},
    "categorical": _VALUES,
    "categorical_w_probabilities": _VALUES | {"probabilities": (list[Number], ...)},
    "int_uniform": {"min": (Whole, ...), "max": (Whole, ...)},
}
# Of each distribution its settings, and its value at a quantile from 0 to 1.
_LAWS: dict[str, tuple[dict[str, Any], Callable[[Settings, float], float]]] = {
    # log(1/x) is uniform between min and max; or between log(1/max) and log(1/min), as log(x) is.
    "inv_log_uniform": (_RANGE, lambda s, u: math.exp(-_between(s, u))),
    "inv_log_uniform_values": (_POSITIVE, _log_values),
    "uniform": (_RANGE, _between),
    "log_uniform": (_RANGE, lambda s, u: math.exp(_between(s, u))),
    "log_uniform_values": (_POSITIVE, _log_values),
    "normal": (_NORMAL, _normal),
    "log_normal": (_NORMAL, lambda s, u: math.exp(_normal(s, u))),
    "beta": ({"a": (Above0, 1.0), "b": (Above0, 1.0)}, _beta),
}
for _name, (_settings, _) in _LAWS.items():
    _SETTINGS[_name] = _settings
    if not _name.startswith("inv"):
        _SETTINGS[f"q_{_name}"] = _settings | {"q": (Above0, 1)}
# The settings of each distribution as a model.
DISTRIBUTIONS: dict[str, type[StrictModel]] = {
    name: create_model(name, __base__=StrictModel, distribution=(str | None, None), **settings)
    for name, settings in _SETTINGS.items()
}


def parse_spec(spec: Any) -> tuple[str, dict[str, Any]]:
    """Return the distribution that a sweep file names or implies, and its settings with their defaults.

    Raises:
        ValidationError: pydantic's, for settings that are missing, unknown or out of range.
        PydanticCustomError: For settings that do not fit together.
    """
    kind = _kind_of(spec)
    s = DISTRIBUTIONS[kind].model_validate(spec).model_dump(exclude={"distribution"})
    if "min" in s and s["min"] > s["max"]:
        raise validation_error(f"min={s['min']} is above max={s['max']}; swap them")
    if shares := s.get("probabilities"):
        is_whole_sum = math.isclose(sum(shares), 1, rel_tol=1e-5)  # as W&B's code
        if len(shares) != len(s["values"]) or min(shares) < 0 or not is_whole_sum:
            raise validation_error(
                f"probabilities={shares}: expected one probability for each value, each at least 0, "
                "with sum 1"
            )
    try:
        tried = [Parameter((), kind, s).at(u) for u in TRIED]
    except IndexError:
        raise validation_error(f"no multiple of q={s['q']} lies in the range") from None
    except (OverflowError, ValueError):
        tried = [math.inf]
    if any(isinstance(value, float) and not math.isfinite(value) for value in tried):
        raise validation_error("its values exceed the range of numbers; use a narrower distribution")
    return kind, s


def _kind_of(spec: Any) -> str:
    given = spec if isinstance(spec, Mapping) else {}
    name = given.get("distribution")
    if name is None and "value" in given:
        return "constant"
    if name is None and "values" not in given:
        if "min" in given or "max" in given:
            return "int_uniform" if is_whole(given.get("min")) and is_whole(given.get("max")) else "uniform"
        raise validation_error(
            "expected {values: [...]}, {value: ...}, {min: ..., max: ...} or a distribution"
        )
    if name in (None, "categorical"):
        return "categorical_w_probabilities" if "probabilities" in given else "categorical"
    if name not in [*DISTRIBUTIONS]:
        near = did_you_mean(name, DISTRIBUTIONS) or f"expected one of {', '.join(DISTRIBUTIONS)}"
        raise validation_error(f"distribution={name!r}: {near}")
    return name


def is_whole(value: Any, low: int | None = None) -> bool:
    """Return whether a value is an integer of at least `low`; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep.

    Attributes:
        path: Its names from the top of the file, groups first: `("optimizer", "lr")`.
        kind: The name of its distribution.
        settings: All settings of the distribution.
    """

    path: tuple[str, ...]
    kind: str
    settings: Settings

    @property
    def key(self) -> str:
        """The dotted name, such as `optimizer.lr`."""
        return ".".join(self.path)

    @property
    def is_listed(self) -> bool:
        """Return whether a grid can run through its values."""
        return self.kind in ("constant", "categorical", "int_uniform", "q_uniform")

    @cached_property
    def _listed(self) -> Sequence[Any]:
        """The values; with `q`, the integers that `q` is multiplied with."""
        s = self.settings
        if "q" in s:
            low, high = self._law(0.0) / s["q"], self._law(1.0) / s["q"]
            return range(math.ceil(low - SLACK), math.floor(high + SLACK) + 1)
        if "min" in s:
            return range(s["min"], s["max"] + 1)
        return [s["value"]] if "value" in s else s["values"]

    def grid_size(self) -> int:
        """Return the number of values in a grid."""
        listed = self._listed  # len() fails for a range of 2**63 and more
        return max(0, listed.stop - listed.start) if isinstance(listed, range) else len(listed)

    def grid_value(self, index: int) -> Any:
        """Return the value at an index of the grid."""
        return self._value(self._listed[index])

    def values(self) -> list[Any]:
        """Return the values of a grid."""
        return [self._value(listed) for listed in self._listed]

    def at(self, u: float) -> Any:
        """Return the value at the quantile `u`, from 0 to 1."""
        s = self.settings
        if "probabilities" in s:
            reached = [*accumulate(s["probabilities"])]
            return s["values"][min(bisect_right(reached, u), len(reached) - 1)]
        if "q" in s:
            count = round(self._law(u) / s["q"])
            if "min" in s:
                count = min(max(count, self._listed[0]), self._listed[-1])
            return self._value(count)
        if self.is_listed:
            count = self.grid_size()
            return self._listed[min(int(u * count), count - 1)]
        return self._law(u)

    def _law(self, u: float) -> float:
        """Return the value of the distribution without its `q`."""
        return _LAWS[self.kind.removeprefix("q_")][1](self.settings, u)

    def _value(self, listed: Any) -> Any:
        """Return a multiple of `q`: an integer if `q` is one, else without the noise of the last digits."""
        q = self.settings.get("q")
        if q is None:
            return listed
        return listed * q if isinstance(q, int) else float(f"{listed * q:.12g}")

    def examples(self) -> list[Any]:
        """Return values that show whether an option takes all: a short list, or the ends of a range."""
        if self.is_listed and self.grid_size() <= MAX_EXAMPLES:
            return self.values()
        return [self.at(u) for u in ((0.0, 1.0) if "min" in self.settings else (0.5,))]


def nested(parameters: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values as W&B passes them to the program: a group is a dictionary."""
    tree: dict[str, Any] = {}
    for parameter, value in zip(parameters, values, strict=True):
        inner = tree
        for group in parameter.path[:-1]:
            inner = inner.setdefault(group, {})
        inner[parameter.path[-1]] = value
    return tree
