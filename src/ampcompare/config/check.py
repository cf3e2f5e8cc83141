"""Which options go together."""

from __future__ import annotations

from ampcompare.config.schema import Config, PrecisionConfig
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.precision import REGISTRY


def check(config: Config) -> None:
    """Raise UserError for values that are fine alone and wrong together."""
    _check_optimizer(config)
    _check_data(config)
    _check_scale_bounds(config.precision)
    if config.execution != "eager":
        _check_execution(config)
    if config.precision.enabled:
        _check_backend(config)


def _check_optimizer(config: Config) -> None:
    optimizer = config.optimizer
    if optimizer.nesterov and not (optimizer.name == "sgd" and optimizer.momentum > 0):
        raise UserError(
            "optimizer.nesterov=true: needs optimizer.name=sgd and optimizer.momentum above 0; set them"
        )
    if optimizer.momentum and optimizer.name != "sgd":
        raise UserError(
            f"optimizer.momentum={optimizer.momentum:g}: only sgd has it; set it to 0 or use "
            "optimizer.name=sgd"
        )


def _check_data(config: Config) -> None:
    data = config.data
    for name in ("mean", "std"):
        values = getattr(data, name)
        if len(values) != 3 or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            raise UserError(f"data.{name}={values}: expected three numbers{above}, one per channel")
    source = SOURCES[data.source]
    if source.needs_root and data.root is None:
        raise UserError(
            f"data.root=None: data.source={source.name} needs a {source.root}; set data.root=PATH"
        )


def _check_scale_bounds(precision: PrecisionConfig) -> None:
    floor, ceiling = precision.min_loss_scale, precision.max_loss_scale
    if floor is not None and ceiling is not None and floor > ceiling:
        raise UserError(
            f"precision.min_loss_scale={floor:g}: expected at most precision.max_loss_scale={ceiling:g}; "
            "lower it"
        )
    if floor is not None and floor > precision.init_scale:
        raise UserError(
            f"precision.min_loss_scale={floor:g}: expected at most "
            f"precision.init_scale={precision.init_scale:g}; lower it or raise init_scale"
        )


def _check_execution(config: Config) -> None:
    if config.training.gradient_penalty:
        raise UserError(
            f"execution={config.execution!r}: training.gradient_penalty={config.training.gradient_penalty:g} "
            "needs the gradient of a gradient, which this execution does not give; use execution=eager"
        )
    if config.execution.endswith("_graph"):
        if config.training.accumulate > 1:
            raise UserError(
                f"execution={config.execution!r}: training.accumulate={config.training.accumulate} has more "
                "than one micro-batch in a step, the graph holds one; use execution=compile, or a larger "
                "batch_size"
            )
        if config.optimizer.fused is False:
            raise UserError(
                f"execution={config.execution!r}: needs optimizer.fused=true, other optimizers decide on the "
                "host; leave optimizer.fused out"
            )


def _check_backend(config: Config) -> None:
    """Whether the backend takes these precision options."""
    backend, precision = REGISTRY[config.backend], config.precision
    floor, ceiling = precision.min_loss_scale, precision.max_loss_scale
    if precision.dtype not in backend.dtypes:
        raise UserError(
            f"precision.dtype={precision.dtype!r}: backend={config.backend} is {backend.dtypes[0]} by "
            "definition; leave it out, or use backend=native"
        )
    if (floor is not None or ceiling is not None) and not backend.bounded_scale:
        key = "min_loss_scale" if floor is not None else "max_loss_scale"
        raise UserError(
            f"precision.{key}={floor if floor is not None else ceiling:g}: backend={config.backend} has "
            "neither floor nor ceiling for the loss scale; leave it out, or use backend=apex_o1"
        )
    if precision.keep_batchnorm_fp32 is not None and not backend.half_weights:
        raise UserError(
            f"precision.keep_batchnorm_fp32={str(precision.keep_batchnorm_fp32).lower()}: "
            f"backend={config.backend} has fp32 weights, BatchNorm's too; leave it out, or use "
            "backend=fp16"
        )
