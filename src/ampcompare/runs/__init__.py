"""Runs read back from what Weights & Biases kept of them: `.wandb` files, or its server."""

from ampcompare.runs.loader import load_runs
from ampcompare.runs.run_record import RunRecord

__all__ = ["RunRecord", "load_runs"]
