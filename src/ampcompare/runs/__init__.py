"""Read runs back: from `.wandb` files, from W&B's server, and from the logs of other programs."""

from ampcompare.runs.loader import load_runs
from ampcompare.runs.run_record import RunRecord

__all__ = ["RunRecord", "load_runs"]
