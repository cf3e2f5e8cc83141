"""The state of a process that one run must not leave to the next: switches, random states, the environment.

A run sets the switches of its own options anyway. The others may be changed by the user's code, or by a
library, while a run is prepared and trained.
"""

import gc
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import deterministic

from ampcompare.system.device import tf32_as

Switch = tuple[Callable[[], Any], Callable[[Any], object]]  # how to read it, and how to set it


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore the state of the process after the body, also after an error.

    These are the environment, the working folder, filters of warnings, the random states of Python, NumPy and
    PyTorch, and PyTorch's switches.
    """
    environment, folder = dict(os.environ), Path.cwd()
    random_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    switches = [(write, read, read()) for read, write in list_switches()]
    try:
        with warnings.catch_warnings(), np.errstate(), tf32_as(False):
            yield
    finally:
        for write, read, value in switches:
            if read() != value:  # some cannot be set again once PyTorch's threads run
                write(value)
        random.setstate(random_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        with suppress(OSError):  # the run's code may have removed the folder
            os.chdir(folder)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})


def list_switches() -> list[Switch]:
    """Return the switches that change how a training computes."""
    backends: Any = torch.backends
    matmul, cudnn, cuda = backends.cuda.matmul, backends.cudnn, backends.cuda
    autocast: list[Switch] = [(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)]
    for kind in ("cpu", "cuda"):
        autocast += [
            (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)),
            (partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)),
        ]
    reductions = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation")
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, torch.set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        _attribute(deterministic, "fill_uninitialized_memory"),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        *autocast,
        *(_attribute(matmul, f"allow_{name}") for name in reductions),
        *(_attribute(cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        _attribute(backends.mkldnn, "enabled"),
        (cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp),
        *(
            (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp"))
            for name in ("flash", "mem_efficient", "math", "cudnn")
        ),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    ]


def _attribute(owner: Any, name: str) -> Switch:
    return partial(getattr, owner, name), partial(setattr, owner, name)
