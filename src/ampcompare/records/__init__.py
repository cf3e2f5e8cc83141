"""Runs read back from what Weights & Biases kept of them: offline `.wandb` files now, its API later."""

from ampcompare.records.run import RunRecord
from ampcompare.records.sources import load_runs

__all__ = ["RunRecord", "load_runs"]
