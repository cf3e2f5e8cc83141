"""What a sweep varies: W&B's eighteen distributions, as grid values and as Optuna suggestions.

Names and meaning follow W&B's documentation of sweep configurations. Optuna has the plain ones; every other
one is its quantile function over a uniform Optuna parameter, so that each sampler works on each distribution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PlainValidator, create_model, model_validator

from ampcompare.errors import did_you_mean
from ampcompare.program.checked import Above0, Checked, Number, is_text, refused

if TYPE_CHECKING:
    from optuna import Trial

Settings = Mapping[str, Any]
Quantile = Callable[[Settings, float], Any]
MOST_SHOWN = 1000  # values of a grid that are tried one by one


def _plain(value: Any) -> Any:
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        _plain(inner)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not (value is None or isinstance(value, list | dict) or is_number or is_text(value)):
        raise refused("expected text, number, true, false, null or lists of these")
    return value


Plain = Annotated[Any, PlainValidator(_plain)]


class _Spec(Checked):
    distribution: str | None = None


class _Constant(_Spec):
    value: Plain


class _Categorical(_Spec):
    values: Annotated[list[Plain], Field(min_length=1)]


class _Weighted(_Categorical):
    probabilities: list[Number]

    @model_validator(mode="after")
    def _shares(self) -> Self:
        shares = self.probabilities
        if len(shares) != len(self.values) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise refused(f"probabilities={shares}: expected one of each value, of at least 0, 1 in all")
        return self


class _Range(_Spec):
    min: Number
    max: Number

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise refused(f"min={self.min} is above max={self.max}; swap them")
        return self


class _Whole(_Range):
    min: int
    max: int


class _Positive(_Range):
    min: Above0


class _Exponents(_Range):
    min: Annotated[Number, Field(ge=-700)]
    max: Annotated[Number, Field(le=700)]


class _Normal(_Spec):
    mu: Number = 0.0
    sigma: Above0 = 1.0


class _Beta(_Spec):
    a: Above0
    b: Above0


def _uniform(s: Settings, u: float) -> float:
    return s["min"] + u * (s["max"] - s["min"])


def _log_uniform_values(s: Settings, u: float) -> float:
    return math.exp(_uniform({"min": math.log(s["min"]), "max": math.log(s["max"])}, u))


def _normal(s: Settings, u: float) -> float:
    return NormalDist(s["mu"], s["sigma"]).inv_cdf(min(max(u, 1e-12), 1 - 1e-12))


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


def _rounded(quantile: Quantile) -> Quantile:
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


# By name what it has to be given, and its quantile function where Optuna or a list does not stand for it.
DISTRIBUTIONS: dict[str, tuple[type[_Spec], Quantile | None]] = {
    "constant": (_Constant, None),
    "categorical": (_Categorical, None),
    "categorical_w_probabilities": (_Weighted, _weighted),
    "int_uniform": (_Whole, None),
}
_LAWS: dict[str, tuple[type[_Spec], Quantile]] = {
    "uniform": (_Range, _uniform),
    "log_uniform": (_Exponents, lambda s, u: math.exp(_uniform(s, u))),
    "log_uniform_values": (_Positive, _log_uniform_values),
    "normal": (_Normal, _normal),
    "log_normal": (_Normal, lambda s, u: math.exp(_normal(s, u))),
    "beta": (_Beta, _beta),
}
for _name, (_model, _law) in _LAWS.items():
    _of_q = create_model(f"_Q{_name}", __base__=_model, q=(Above0, 1))
    DISTRIBUTIONS |= {_name: (_model, _law), f"q_{_name}": (_of_q, _rounded(_law))}
# log(1/x) is uniform between min and max; or between log(1/max) and log(1/min), as log(x) is.
DISTRIBUTIONS["inv_log_uniform"] = (_Exponents, lambda s, u: math.exp(-_uniform(s, u)))
DISTRIBUTIONS["inv_log_uniform_values"] = DISTRIBUTIONS["log_uniform_values"]


def parse_spec(spec: Any) -> tuple[str, dict[str, Any]]:
    """The distribution that a file names or implies, and all its settings. Raises pydantic's errors."""
    kind = _kind_of(spec) if isinstance(spec, Mapping) else None
    if kind is None:
        if isinstance(spec, Mapping) and "distribution" in spec:
            known = f"expected one of {', '.join(DISTRIBUTIONS)}"
            near = did_you_mean(name := spec["distribution"], DISTRIBUTIONS)
            raise refused(f"distribution={name!r}: {near or known}")
        raise refused("expected {values: [...]}, {value: ...}, {min: ..., max: ...} or a distribution")
    settings = DISTRIBUTIONS[kind][0].model_validate(spec).model_dump(exclude={"distribution"})
    try:
        if "q" in settings and "min" in settings:
            first, last = multiples(*_ends(kind.removeprefix("q_"), settings), settings["q"])
            if first > last:
                raise refused(f"no multiple of q={settings['q']} lies in the range")
        if not all(map(math.isfinite, _ends(kind, settings))):
            raise OverflowError
    except (OverflowError, ZeroDivisionError):
        raise refused("its values are beyond what a number can hold; narrow it") from None
    return kind, settings


def _kind_of(spec: Settings) -> str | None:
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
        whole = all(is_whole(spec.get(key)) for key in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return None


def _ends(kind: str, s: Settings) -> tuple[float, float]:
    """The least and the greatest number that it may become, near enough; 0 and 0 of what is listed."""
    quantile = DISTRIBUTIONS[kind][1]
    if quantile is None or "values" in s:
        return 0.0, 0.0
    outer = 0.0 if "min" in s or "a" in s else 1e-12
    return quantile(s, outer), quantile(s, 1.0 - outer)


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

    def grid_size(self) -> int:
        """How many values a grid takes."""
        return len(self._listed())

    def grid_value(self, index: int) -> Any:
        """The value at a place of the grid."""
        value = self._listed()[index]
        return multiple(value, self.settings["q"]) if self.kind == "q_uniform" else value

    def _listed(self) -> Sequence[Any]:
        s = self.settings
        if self.kind == "constant":
            return [s["value"]]
        if self.kind == "int_uniform":
            return range(s["min"], s["max"] + 1)
        if self.kind == "q_uniform":
            first, last = multiples(s["min"], s["max"], s["q"])
            return range(first, last + 1)
        return s["values"]

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
        quantile = DISTRIBUTIONS[self.kind][1]
        assert quantile
        return quantile(s, trial.suggest_float(f"{self.key} (quantile)", 0.0, 1.0))

    def examples(self) -> list[Any]:
        """Values that show whether an option would take them all: those that are listed, or the ends."""
        if self.is_listed:
            count = self.grid_size()
            return [self.grid_value(i) for i in (range(count) if count <= MOST_SHOWN else (0, count - 1))]
        s, quantile = self.settings, DISTRIBUTIONS[self.kind][1]
        assert quantile
        return [quantile(s, u) for u in ((0.0, 1.0) if "min" in s else (0.5,))]


def nested(parameters: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    """The values of the parameters as the tree that W&B hands to the program: groups are dictionaries."""
    tree: dict[str, Any] = {}
    for parameter, value in zip(parameters, values, strict=True):
        inner = tree
        for group in parameter.path[:-1]:
            inner = inner.setdefault(group, {})
        inner[parameter.path[-1]] = value
    return tree
