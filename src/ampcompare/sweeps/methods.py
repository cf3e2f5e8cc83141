"""The methods of a sweep: how each draws its points and what its file must hold. All else asks `METHODS`.

Optuna is imported when a sampler is made, so that a sweep file is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampcompare.errors import UserError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class Method:
    """What everything else needs to know of a way through the parameters."""

    sampler: Callable[[], BaseSampler] | None = None  # of Optuna's, who goes by what was tried
    is_grid: bool = False  # every point once, by number
    needs_metric: bool = False


def _bayes() -> BaseSampler:
    import optuna

    # constant_liar: parallel workers do not try the same place at once.
    return optuna.samplers.TPESampler(multivariate=True, constant_liar=True)


METHODS: dict[str, Method] = {
    "grid": Method(is_grid=True),
    "random": Method(),
    "bayes": Method(_bayes, needs_metric=True),
}


def method_of(name: str) -> Method:
    """The method of a name. Raises UserError for one that there is not."""
    if name not in METHODS:
        raise UserError(f"method={name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]
