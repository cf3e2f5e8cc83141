"""How W&B's client looks at what is logged."""

from __future__ import annotations


def leave_pandas_out() -> None:
    """Tell tables of pandas by the name of their type, as the client does where pandas is not installed.

    For a value that is a list or None it loads pandas otherwise (wandb 0.31: `util.is_pandas_data_frame`),
    0.3 s of CPU time in every run, to ask whether it is one.
    """
    import wandb.util

    if hasattr(wandb.util, "pd_available"):
        wandb.util.pd_available = False
