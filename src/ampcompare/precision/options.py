"""What a backend can be told, with every default: the config and apex's loss scaler take them from here.

Free of torch, as the config is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PrecisionOptions:
    """What a backend can be told; each takes what applies to it.

    `loss_scale` is "dynamic" or a static number. `min_loss_scale` and `max_loss_scale` bound a dynamic scale
    where the backend has bounds; None is the backend's own default (apex: no floor, ceiling 2**24).
    `keep_batchnorm_fp32` is for backends with fp16 weights; None is the level's own (O2: true, pure fp16,
    which is O3: false). `keep_fp32` are names of modules, stars in them, that compute in fp32 (`keep.py`).
    `seed` is where a backend begins that draws random numbers.
    """

    enabled: bool = True
    dtype: str = "float16"
    loss_scale: float | str = "dynamic"
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    min_loss_scale: float | None = None
    max_loss_scale: float | None = None
    keep_batchnorm_fp32: bool | None = None
    keep_fp32: Sequence[str] | str | None = None
    min_scale_warning: float = 1.0
    seed: int = 0
