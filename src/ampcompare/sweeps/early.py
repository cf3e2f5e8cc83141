"""What stops runs that fall behind, as a file's `early_terminate` has it."""

from __future__ import annotations

from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner

from ampcompare.sweeps.file import Hyperband


def pruner_of(early: Hyperband | None) -> BasePruner:
    """Optuna's pruner that judges by these bands; one that stops nothing where there are none."""
    if early is None:
        return NopPruner()
    return SuccessiveHalvingPruner(min_resource=early.bands[0], reduction_factor=early.eta)
