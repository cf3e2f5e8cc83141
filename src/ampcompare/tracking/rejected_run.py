"""Tells W&B's sweep about a run that was rejected before it started."""

import os
import sys
from typing import Any

from ampcompare import metrics
from ampcompare.errors import EXIT_BAD_INPUT, UserError
from ampcompare.wandb_client.client import api_reason, end_service

SECONDS = 15.0


def record_rejected_run(problem: UserError) -> None:
    """Let W&B's sweep show a rejected run as failed, with the reason in its notes.

    The sweep chose the values, so it has to learn that they are not allowed.
    """
    sweep = os.environ.get("WANDB_SWEEP_ID")
    is_of_wandbs_sweep = sweep and os.environ.get("WANDB_RUN_ID")
    is_local = os.environ.get("AMPCOMPARE_LOCAL_SWEEP")
    is_first_process = os.environ.get("RANK", "0") == "0"
    if not is_of_wandbs_sweep or is_local or not is_first_process:
        return
    import wandb

    quiet: dict[str, Any] = {"console": "off", "silent": True, "show_errors": False}
    settings = wandb.Settings(init_timeout=SECONDS, finish_timeout=SECONDS, **quiet)
    try:
        run = wandb.init(group=sweep, job_type="train", notes=str(problem), settings=settings)
        run.summary[metrics.REFUSED] = str(problem)  # W&B's server does not return exit codes
        run.finish(exit_code=EXIT_BAD_INPUT)
    except Exception as failure:  # whatever it is, the refusal is what the run ends with
        sys.stderr.write(f"W&B could not record the rejected run: {api_reason(failure)}\n")
    end_service()
