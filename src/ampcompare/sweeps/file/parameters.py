"""What a sweep varies: W&B's parameter distributions, as grid values and as Optuna suggestions.

Names and meaning follow W&B's documentation of sweep configurations. Optuna has the plain ones; every other
one is its quantile function over a uniform Optuna parameter, so that each sampler works on each distribution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Trial

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Distribution:
    """A distribution: settings it must have, further ones with their defaults, its quantile function."""

    required: tuple[str, ...]
    optional: Mapping[str, float]
    quantile: Callable[[Settings, float], Any] | None = None


def _uniform(s: Settings, u: float) -> float:
    return s["min"] + u * (s["max"] - s["min"])


def _log_uniform(s: Settings, u: float) -> float:
    return math.exp(_uniform(s, u))


def _log_uniform_values(s: Settings, u: float) -> float:
    return _log_uniform({"min": math.log(s["min"]), "max": math.log(s["max"])}, u)


def _inv_log_uniform(s: Settings, u: float) -> float:
    """log(1/x) is uniform between min and max."""
    return math.exp(-_uniform(s, u))


def _normal(s: Settings, u: float) -> float:
    from statistics import NormalDist

    return NormalDist(s["mu"], s["sigma"]).inv_cdf(min(max(u, 1e-12), 1 - 1e-12))


def _log_normal(s: Settings, u: float) -> float:
    return math.exp(_normal(s, u))


def _beta(s: Settings, u: float) -> float:
    from scipy.stats import beta

    return float(beta.ppf(u, s["a"], s["b"]))


def _weighted(s: Settings, u: float) -> Any:
    reached = 0.0
    for value, probability in zip(s["values"], s["probabilities"], strict=True):
        reached += probability
        if u < reached:
            return value
    return s["values"][-1]


def _rounded(quantile: Callable[[Settings, float], float]) -> Callable[[Settings, float], float]:
    """The same to the nearest multiple of q; where there is a range, to one within it."""

    def on_grid(s: Settings, u: float) -> float:
        count = round(quantile(s, u) / s["q"])
        if "min" in s:
            first, last = multiples(quantile(s, 0.0), quantile(s, 1.0), s["q"])
            count = min(max(count, first), last)
        return multiple(count, s["q"])

    return on_grid


def multiples(low: float, high: float, q: float) -> tuple[int, int]:
    """The first and the last multiple of q between low and high, by number; first above last: none."""
    slack = 1e-9  # 0.3 / 0.1 is not quite 3
    return math.ceil(low / q - slack), math.floor(high / q + slack)


def multiple(count: int, q: float) -> float:
    """`count` times q, without the noise of the last digits; whole where q is."""
    return count * q if isinstance(q, int) else float(f"{count * q:.12g}")


_RANGE, _NORMAL = ("min", "max"), {"mu": 0.0, "sigma": 1.0}
_Q = {"q": 1}
DISTRIBUTIONS: dict[str, Distribution] = {
    "constant": Distribution(("value",), {}),
    "categorical": Distribution(("values",), {}),
    "categorical_w_probabilities": Distribution(("values", "probabilities"), {}, _weighted),
    "int_uniform": Distribution(_RANGE, {}),
    "uniform": Distribution(_RANGE, {}, _uniform),
    "q_uniform": Distribution(_RANGE, _Q, _rounded(_uniform)),
    "log_uniform": Distribution(_RANGE, {}, _log_uniform),
    "log_uniform_values": Distribution(_RANGE, {}, _log_uniform_values),
    "q_log_uniform": Distribution(_RANGE, _Q, _rounded(_log_uniform)),
    "q_log_uniform_values": Distribution(_RANGE, _Q, _rounded(_log_uniform_values)),
    "inv_log_uniform": Distribution(_RANGE, {}, _inv_log_uniform),
    # log(1/x) uniform between log(1/max) and log(1/min) is log(x) uniform between log(min) and log(max).
    "inv_log_uniform_values": Distribution(_RANGE, {}, _log_uniform_values),
    "normal": Distribution((), _NORMAL, _normal),
    "q_normal": Distribution((), _NORMAL | _Q, _rounded(_normal)),
    "log_normal": Distribution((), _NORMAL, _log_normal),
    "q_log_normal": Distribution((), _NORMAL | _Q, _rounded(_log_normal)),
    "beta": Distribution(("a", "b"), {}, _beta),
    "q_beta": Distribution(("a", "b"), _Q, _rounded(_beta)),
}
POSITIVE_RANGES = ("log_uniform_values", "q_log_uniform_values", "inv_log_uniform_values")


def kind_of(spec: Mapping[str, Any]) -> str | None:
    """The distribution that the file names or implies; None if neither, or an unknown one."""
    if "distribution" in spec:
        name = spec["distribution"]
        if not isinstance(name, str) or name not in DISTRIBUTIONS:
            return None
        return "categorical_w_probabilities" if name == "categorical" and "probabilities" in spec else name
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical_w_probabilities" if "probabilities" in spec else "categorical"
    if "min" in spec or "max" in spec:
        return "int_uniform" if is_whole(spec.get("min")) and is_whole(spec.get("max")) else "uniform"
    return None


def complete(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the file over the distribution's defaults."""
    own = {key: value for key, value in spec.items() if key != "distribution"}
    return {**DISTRIBUTIONS[kind].optional, **own}


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
    def is_listed(self) -> bool:
        """Whether it has a list of values, which a grid can run through."""
        return self.kind in ("constant", "categorical", "int_uniform", "q_uniform")

    def is_empty(self) -> bool:
        """Whether no multiple of q lies in its range."""
        if not (self.kind.startswith("q_") and "min" in self.settings):
            return False
        low, high = Parameter(self.path, self.kind.removeprefix("q_"), self.settings).ends()
        first, last = multiples(low, high, self.settings["q"])
        return first > last

    def ends(self) -> list[float]:
        """The least and the greatest number that it may become, near enough; nothing for what is listed."""
        quantile, s = DISTRIBUTIONS[self.kind].quantile, self.settings
        if self.kind == "int_uniform":
            return [s["min"], s["max"]]
        if quantile is None or "values" in s:
            return []
        outer = 0.0 if "min" in s or "a" in s else 1e-12
        return [quantile(s, outer), quantile(s, 1.0 - outer)]

    def grid_size(self) -> int:
        """How many values a grid takes."""
        s = self.settings
        if self.kind == "constant":
            return 1
        if self.kind == "int_uniform":
            return int(s["max"] - s["min"] + 1)
        if self.kind == "q_uniform":
            first, last = multiples(s["min"], s["max"], s["q"])
            return last - first + 1
        return len(s["values"])

    def grid_value(self, index: int) -> Any:
        """The value at a place of the grid."""
        s = self.settings
        if self.kind == "constant":
            return s["value"]
        if self.kind == "int_uniform":
            return s["min"] + index
        if self.kind == "q_uniform":
            return multiple(multiples(s["min"], s["max"], s["q"])[0] + index, s["q"])
        return s["values"][index]

    def suggest(self, trial: Trial) -> Any:
        """A value from the trial's sampler."""
        s = self.settings
        if self.kind == "constant":
            return s["value"]
        if self.kind == "categorical":
            # As JSON, since Optuna's storage tells neither 1 from True nor keeps lists.
            texts = [json.dumps(value) for value in s["values"]]
            return s["values"][texts.index(trial.suggest_categorical(self.key, texts))]
        if self.kind == "int_uniform":
            return trial.suggest_int(self.key, s["min"], s["max"])
        if self.kind in ("uniform", "log_uniform_values"):
            return trial.suggest_float(self.key, s["min"], s["max"], log=self.kind != "uniform")
        quantile = DISTRIBUTIONS[self.kind].quantile
        assert quantile is not None
        return quantile(s, trial.suggest_float(f"{self.key} (quantile)", 0.0, 1.0))

    def examples(self) -> list[Any]:
        """Values that show whether an option would take them all: those that are listed, or the ends."""
        if self.is_listed:
            count = self.grid_size()
            return [self.grid_value(i) for i in (range(count) if count <= 1000 else (0, count - 1))]
        s, quantile = self.settings, DISTRIBUTIONS[self.kind].quantile
        assert quantile is not None
        return [quantile(s, u) for u in ((0.0, 1.0) if {"min", "max"} <= s.keys() else (0.5,))]


def nested(parameters: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    """The values of the parameters as the tree that W&B hands to the program: groups are dictionaries."""
    tree: dict[str, Any] = {}
    for parameter, value in zip(parameters, values, strict=True):
        inner = tree
        for group in parameter.path[:-1]:
            inner = inner.setdefault(group, {})
        inner[parameter.path[-1]] = value
    return tree
