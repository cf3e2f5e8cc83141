"""What a checkpoint of a run holds.

Exact: on a CPU, and on a GPU with `deterministic=true`, a run that was killed and resumed has the weights,
losses and loss scales of one that was not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ampcompare.errors import UserError, reason
from ampcompare.machine.device import random_state, set_random_state

if TYPE_CHECKING:
    from ampcompare.train.fit import Fit


def capture(fit: Fit) -> dict[str, Any]:
    """All that a run needs to go on: plain values, tensors. Waits for the device when it is written out."""
    trainer, device = fit.trainer, fit.device
    return {
        "fit": fit.state_dict(),
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "precision": trainer.precision.state_dict(),
        "random": _random_states(device),
    }


def restore(fit: Fit, state: Mapping[str, Any]) -> None:
    """Put a fresh fit where another one was. Raises UserError for a state of something else."""
    trainer = fit.trainer
    try:
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.scheduler.load_state_dict(state["scheduler"])
        trainer.precision.load_state_dict(state["precision"])  # after the model: fp32 masters are finer
        fit.load_state_dict(state["fit"])
        _set_random_states(state["random"], fit.device)
    except Exception as problem:  # what a file that passes every check may still lack
        what = f"the checkpoint of run {state.get('run_id')} does not fit this program ({reason(problem)})"
        raise UserError(f"resume: {what}; start anew with resume=never") from None


def _random_states(device: torch.device) -> dict[str, Any]:
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    twister = torch.from_numpy(np.asarray(keys).astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": random_state(device),
        "python": [version, list(words), gauss],
        "numpy": [twister, int(position), int(has_gauss), float(cached)],
    }


def _set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    set_random_state(device, states["cuda"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
