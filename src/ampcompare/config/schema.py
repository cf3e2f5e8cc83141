"""The options of one run: every key with its meaning, default and range, and which go together.

Keys that a comparison turns on (backend, seed, batch size, ...) are top level, so that sweeps and W&B can
group by them. The resolved tree is logged whole. This module must stay free of torch: `--help` answers in
under 0.5 s.
"""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from typing import Any

from ampcompare.config.options import NOT_ADDED, Leaf, Role, group, leaves, option
from ampcompare.data.sources import SOURCES
from ampcompare.plugins import BACKENDS, DATA, MODELS
from ampcompare.precision.backends import AUTO, HINTS, REGISTRY, TYPES
from ampcompare.precision.options import PrecisionOptions

_PRECISION = PrecisionOptions  # which has the defaults
_BOUNDED = ", ".join(name for name, backend in REGISTRY.items() if backend.bounded_scale)
_HALF = {name: backend.keeps_batchnorm for name, backend in REGISTRY.items() if backend.half_weights}
_KEEPS = ", ".join(f"{name} {'yes' if keeps else 'no'}" for name, keeps in _HALF.items())

# What the options are called elsewhere, by the last part of a key.
KEY_HINTS = {
    **dict.fromkeys(("learning_rate", "base_lr", "init_lr"), "optimizer.lr"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("bs", "batch", "train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("amp", "opt_level", "mixed_precision", "use_amp"), "backend"),
    **dict.fromkeys(("gpu", "gpus", "accelerator"), "device"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clip_val"), "training.clip_norm"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "training.accumulate"),
    **dict.fromkeys(("arch", "model_name"), "model.name"),
    **dict.fromkeys(("wd", "l2"), "optimizer.weight_decay"),
}


@dataclass
class ModelConfig:
    name: str = option(
        "resnet50", "network", choices=("resnet50", "resnet18", "resnet20", "tiny"), door=MODELS
    )
    stem: str = option(
        "cifar",
        "first layers: cifar = 3x3 stride 1, no max-pool; imagenet = 7x7 stride 2, max-pool",
        choices=("cifar", "imagenet"),
    )
    zero_init_residual: bool = option(
        False,
        "a ResNet of ours begins with each residual branch at 0 (the weight of its last BatchNorm), and "
        "learns from the first steps",
        before=False,
    )


@dataclass
class DataConfig:
    source: str = option("cifar10", "where images come from", choices=SOURCES, door=DATA)
    root: str | None = option(
        None,
        "; ".join(f"{s.name}: {s.root}" for s in SOURCES.values() if s.root),
        role=Role.MAY_DIFFER,  # when a run goes on, the data are compared as such
    )
    train_limit: int | None = option(None, "use only so many training images (class-balanced)", low=1)
    test_limit: int | None = option(None, "use only so many test images (class-balanced)", low=1)
    augment: bool = option(True, "random crop with padding 4 and horizontal flip of training images")
    mean: list[float] = option([0.4914, 0.4822, 0.4465], "per-channel mean subtracted from pixels in 0..1")
    std: list[float] = option([0.2023, 0.1994, 0.2010], "per-channel standard deviation that divides them")


@dataclass
class OptimizerConfig:
    name: str = option("sgd", "optimizer", choices=("sgd", "adam", "adamw"))
    lr: float = option(0.1, "peak learning rate", above=0)
    momentum: float = option(0.0, "momentum of sgd", low=0, below=1)
    nesterov: bool = option(False, "Nesterov momentum (sgd)")
    weight_decay: float = option(0.0, "weight decay", low=0)
    fused: bool | None = option(
        None,
        "one kernel for the whole step, and the skip after an overflow decided on the device; null: on a "
        "GPU, as it is the same arithmetic there",
    )


@dataclass
class ScheduleConfig:
    name: str = option("cosine", "learning rate after warm-up", choices=("cosine", "constant"))
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from 0", low=0)


@dataclass
class PrecisionConfig:
    enabled: bool = option(_PRECISION.enabled, "false makes any backend a plain fp32 run")
    dtype: str | None = option(
        None,
        "low-precision type, the backend's own if null; auto: float16 on a GPU, on a CPU the faster one of "
        "those that the backend takes, measured as the run starts",
        choices=(*TYPES, AUTO),
    )
    loss_scale: float | str = option(
        _PRECISION.loss_scale, "a static loss scale, or dynamic", choices=("dynamic",), above=0
    )
    init_scale: float = option(_PRECISION.init_scale, "first loss scale when dynamic", above=0)
    growth_interval: int = option(
        _PRECISION.growth_interval, "steps without overflow before the scale grows", low=1
    )
    growth_factor: float = option(_PRECISION.growth_factor, "factor by which the scale grows", above=1)
    backoff_factor: float = option(_PRECISION.backoff_factor, "factor after an overflow", above=0, below=1)
    min_loss_scale: float | None = option(
        _PRECISION.min_loss_scale, f"floor of the dynamic scale ({_BOUNDED})", above=0
    )
    max_loss_scale: float | None = option(
        _PRECISION.max_loss_scale, f"its ceiling ({_BOUNDED}; null: 2**24)", above=0
    )
    keep_batchnorm_fp32: bool | None = option(
        _PRECISION.keep_batchnorm_fp32,
        f"BatchNorm in fp32 in a model whose weights are half; null: {_KEEPS}",
        before=None,
        null_is=lambda of: REGISTRY[of("backend")].keeps_batchnorm if of("backend") in [*REGISTRY] else None,
    )
    min_scale_warning: float = option(
        _PRECISION.min_scale_warning, "report once when the dynamic scale falls below this", low=0
    )


@dataclass
class TrainingConfig:
    accumulate: int = option(1, "micro-batches of batch_size per optimizer step", low=1)
    clip_norm: float | None = option(None, "clip the L2 norm of the true gradients", above=0)
    clip_value: float | None = option(None, "clip each true gradient element to +-this", above=0)
    gradient_penalty: float = option(0.0, "weight of the L2 norm of the gradients in the loss", low=0)
    label_smoothing: float = option(0.0, "label smoothing of the cross entropy", low=0, below=1)
    on_nan: str = option("stop", "when the loss is not finite at a scale of 1", choices=("stop", "continue"))
    on_nonfinite_buffers: str = option(
        "say",
        "when a forward overflows and BatchNorm's running statistics with it, although the step is skipped: "
        "say it, or put all buffers back to those before the step (a copy of them each step)",
        choices=("say", "restore"),
        before="say",
    )


@dataclass
class EvalConfig:
    every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", low=1)
    autocast: bool = option(False, "evaluate inside the backend's forward context instead of full precision")
    tf32: bool | None = option(
        None,
        "let an evaluation in fp32 round to TF32 on the GPU; null: as tf32 says",
        before=None,
        null_is=lambda of: of("tf32"),
    )
    batch_size: int = option(512, "images per evaluation batch", low=1)


@dataclass
class LogConfig:
    every: int = option(50, "optimizer steps between rows", low=1)
    warmup_steps: int = option(
        10, "first steps left out of throughput, step times and peak memory", low=0, role=Role.MAY_DIFFER
    )


@dataclass
class DiagnosticsConfig:
    every: int | None = option(100, "optimizer steps between looks at the gradients, or null for none", low=1)


@dataclass
class CheckpointConfig:
    every_epochs: int | None = option(1, "epochs between checkpoints", low=1)
    every_minutes: float | None = option(
        10.0, "minutes between checkpoints, within epochs too; both null: none, not even at the end", above=0
    )


@dataclass
class PlanConfig:
    """What was laid down before the runs: it lies in each one's record, and none trains by it."""

    margin: float | None = option(
        None,
        "margin of equivalence in the unit that the report shows, such as points of accuracy; null: the "
        "report's own",
        above=0,
    )
    target: float | None = option(
        None, "value that the time to target goes by, as logged, such as 0.93; null: the baseline's", above=0
    )
    looks: list[int] | None = option(
        None, "numbers of seeds at which somebody looks and may stop; null: one look, at the end", low=2
    )
    max_seeds: int | None = option(None, "seeds at most where they are added until all is decided", low=2)
    control: str = option(
        "none",
        "the baseline once more as a group of its own; bookends: first and last in the sweep",
        choices=("none", "bookends"),
        hints={"null": "none", "false": "none", "off": "none", "true": "bookends", "a/a": "bookends"},
    )
    arm: str | None = option(
        None,
        "this run is of the control, before or behind the others; a sweep sets it",
        choices=("first", "last"),
    )
    block: int | None = option(None, "number of this run's block in its sweep, which sets it", low=0)
    place: int | None = option(None, "place of this run in the order of its sweep, which sets it", low=0)


@dataclass
class WandbConfig:
    mode: str = option(
        "auto",
        "auto: online with an API key, offline without; disabled keeps no record",
        choices=("auto", "online", "offline", "disabled"),
        hints={**dict.fromkeys(("off", "none", "false", "no"), "disabled"), "dryrun": "offline"},
    )
    project: str = option(
        "comparison-amp",
        "project",
        pattern=r"[^/\\#?%:\x00-\x1f]{1,128}",
        pattern_words=r"1 to 128 characters without / \ # ? % :",
    )
    entity: str | None = option(None, "user or team; null: the key's default")
    group: str | None = option(None, "group; a sweep's id goes before it")
    name: str | None = option(None, "run name; null: from backend, model and data")
    tags: list[str] = option([], "tags")
    notes: str | None = option(None, "notes")


@dataclass
class Config:
    backend: str = option(
        "none",
        "precision backend, what is compared: "
        + ", ".join(f"{name} = {backend.words}" for name, backend in REGISTRY.items()),
        choices=tuple(REGISTRY),
        hints=HINTS,
        door=BACKENDS,
    )
    seed: int = option(223, "seed of weights, order, augmentation", low=0, high=2**63 - 1, role=Role.REPEAT)
    batch_size: int = option(128, "images per micro-batch", low=1)
    epochs: int = option(100, "passes over the training images", low=1)
    max_steps: int | None = option(
        None, "optimizer steps at most; the schedule stays that of epochs", low=1, role=Role.MAY_DIFFER
    )
    device: str = option(
        "auto",
        "device: the first of cuda, mps, cpu that is there, or one by name",
        role=Role.MAY_DIFFER,  # when a run goes on, what kind it is has to be the same
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        pattern_words="one of auto, cpu, cuda, cuda:N, mps",
        hints={"gpu": "cuda", "0": "cuda:0", "cuda:": "cuda"},
    )
    execution: str = option(
        "eager",
        "how a step is run: call by call; forward and backward compiled (torch.compile); the whole step as "
        "one CUDA graph; compiled, then as one graph",
        choices=("eager", "compile", "cuda_graph", "compile_graph"),
        hints={
            **dict.fromkeys(("torch.compile", "torch_compile", "compiled", "inductor", "true"), "compile"),
            **dict.fromkeys(("cudagraph", "cuda-graph", "cuda_graphs", "cudagraphs", "graph"), "cuda_graph"),
        },
    )
    fuse: bool = option(
        False,
        "the same numbers, within rounding, in fewer ops and passes over memory than the backend's own: "
        "BatchNorm with ReLU and residual, counters, native's casts and unscaling; needs a compiler "
        "(optimizer.fused is another thing)",
        before=False,
    )
    tf32: bool = option(False, "let fp32 matrix products and convolutions round to TF32 on the GPU")
    memory_format: str = option(
        "auto",
        "layout of images and weights; auto: channels_last on an NVIDIA GPU, else contiguous",
        choices=("auto", "contiguous", "channels_last"),
        hints={"nchw": "contiguous", "nhwc": "channels_last"},
    )
    cudnn_benchmark: bool = option(True, "let cuDNN try its algorithms and keep the fastest")
    deterministic: bool = option(False, "only deterministic algorithms; slower, bit-identical on one machine")
    output_dir: str = option("runs", "folder of the run's record", role=Role.BOOKKEEPING)
    resume: str = option(
        "never",
        "go on with an unfinished run of this config in output_dir: auto if there is one, must or fail, "
        "never",
        role=Role.BOOKKEEPING,
        choices=("auto", "never", "must"),
        hints={
            **dict.fromkeys(("true", "yes", "allow", "1"), "auto"),
            **dict.fromkeys(("false", "no", "0"), "never"),
        },
    )
    model: ModelConfig = group(ModelConfig)
    data: DataConfig = group(DataConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    schedule: ScheduleConfig = group(ScheduleConfig)
    precision: PrecisionConfig = group(PrecisionConfig)
    training: TrainingConfig = group(TrainingConfig)
    eval: EvalConfig = group(EvalConfig)
    log: LogConfig = group(LogConfig)
    diagnostics: DiagnosticsConfig = group(DiagnosticsConfig)
    checkpoint: CheckpointConfig = group(CheckpointConfig, Role.BOOKKEEPING)
    plan: PlanConfig = group(PlanConfig, Role.BOOKKEEPING)
    wandb: WandbConfig = group(WandbConfig, Role.BOOKKEEPING)

    def to_dict(self) -> dict[str, Any]:
        """The whole tree as plain values, as it is logged."""
        return dataclasses.asdict(self)

    def value(self, key: str) -> Any:
        """The value at a dotted key."""
        return operator.attrgetter(key)(self)


LEAVES: dict[str, Leaf] = {leaf.key: leaf for leaf in leaves(Config)}
GROUPS = {key.rpartition(".")[0] for key in LEAVES} - {""}
# Options that came later, with the values that runs from before had: they are pooled and resumed as such.
ADDED_LATER = {k: leaf.meta["before"] for k, leaf in LEAVES.items() if leaf.meta["before"] is not NOT_ADDED}


def with_role(*roles: Role) -> frozenset[str]:
    """The keys of the options with one of these roles, and of the groups that hold no others (`wandb`)."""
    keys = {key for key, leaf in LEAVES.items() if leaf.role in roles}
    others = {key.rpartition(".")[0] for key in LEAVES.keys() - keys}
    return frozenset(keys | (GROUPS - others))
