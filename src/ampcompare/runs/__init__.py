"""Runs read back from what Weights & Biases kept of them: `.wandb` files, or its server."""

from ampcompare.records.run import RunRecord
from ampcompare.records.sources import load_runs

__all__ = ["RunRecord", "load_runs"]
