"""The options of one run: every key with its meaning, default and range, and which go together.

Keys that a comparison turns on (backend, seed, batch size, ...) are top level, so that sweeps and W&B can
group by them. The resolved tree is logged whole. This module must stay free of torch: `--help` answers in
under 0.5 s.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ampcompare.config import task
from ampcompare.config.beside import CheckpointConfig, PlanConfig, PublishedConfig, WandbConfig
from ampcompare.config.options import Leaf, Role, group, leaves, option
from ampcompare.data.sources import SOURCES
from ampcompare.plugins import BACKENDS, DATA, LOSSES, METRICS, MODELS
from ampcompare.precision.backends import HINTS, REGISTRY, PrecisionOptions

_PRECISION = PrecisionOptions  # which has the defaults
_BOUNDED = ", ".join(name for name, backend in REGISTRY.items() if backend.bounded_scale)
_HALF = {name: backend.keeps_batchnorm for name, backend in REGISTRY.items() if backend.half_weights}
_KEEPS = ", ".join(f"{name} {'yes' if keeps else 'no'}" for name, keeps in _HALF.items())


@dataclass
class ModelConfig:
    name: str = option(
        "resnet50",
        "network, also timm:NAME, ./net.py:build",
        choices=("resnet50", "resnet18", "resnet152", "resnet20", "tiny"),
        door=MODELS,
    )
    stem: str = option(
        "cifar",
        "first layers of our ResNets: cifar = 3x3 stride 1, no max-pool; imagenet = 7x7 stride 2, max-pool",
        choices=("cifar", "imagenet"),
    )
    zero_init_residual: bool = option(
        False,
        "a ResNet of ours begins with each residual branch at 0 (the weight of its last BatchNorm), and "
        "learns from the first steps",
    )
    kwargs: dict[str, Any] = option({}, "arguments of a network from elsewhere, by their names")


@dataclass
class DataConfig:
    source: str = option("cifar10", "data, also image_folder, ./data.py:build", choices=SOURCES, door=DATA)
    kwargs: dict[str, Any] = option(
        {}, "arguments of a source from elsewhere, by their names; synthetic takes size, in pixels (32)"
    )
    root: str | None = option(
        None,
        "; ".join(["folder of the data", *(f"{s.name}: {s.root}" for s in SOURCES.values() if s.root)]),
        role=Role.MAY_DIFFER,  # when a run goes on, the data are compared as such
    )
    train_limit: int | None = option(None, "training images at most, class-balanced", low=1)
    test_limit: int | None = option(None, "test images at most, class-balanced", low=1)
    augment: bool = option(True, "random crop with padding 4 and horizontal flip of training images")
    workers: int | None = option(
        None,
        "processes that make the batches of a map-style Dataset from elsewhere; null: a core less than there "
        "are, 4 at most",
        low=0,
        role=Role.MAY_DIFFER,  # the batches are the same
    )
    mean: list[float] = option([0.4914, 0.4822, 0.4465], "per-channel mean subtracted from pixels in 0..1")
    std: list[float] = option([0.2023, 0.1994, 0.2010], "per-channel standard deviation that divides them")


@dataclass
class TaskConfig:
    loss: str = option(
        task.CROSS_ENTROPY,
        "what is minimised: a built-in loss, or fn(outputs, targets) that gives the mean as a 0-d tensor (a "
        "class is called without arguments first)",
        choices=task.OF_LOSS,
        hints=task.HINTS,
        door=LOSSES,
    )
    metrics: list[str] | None = option(
        None,
        "what an evaluation scores beside the loss, as eval/NAME: built-in metrics, or fn(outputs, targets) "
        'that gives a value a sample, or a 0-d mean, with fn.better = "higher" or "lower" where its name '
        "does not say; null: " + task.IN_WORDS,
        choices=task.SCORES,
        door=METRICS,
        null_is=lambda of: [*task.metrics_of(of("task.loss"), None)],
    )
    metric: str | None = option(
        None,
        f"the one of them that is compared, or {task.LOSS}; null: the first, or {task.LOSS} if there is none",
        null_is=lambda of: task.first(of("task.loss"), of("task.metrics")),
    )


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
    name: str = option("cosine", "learning rate after warm-up", choices=("cosine", "constant", "multistep"))
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from 0", low=0)
    milestones: list[float] | None = option(
        None, "epochs after which multistep takes gamma times the rate", above=0
    )
    gamma: float = option(0.1, "that factor", above=0)


@dataclass
class PrecisionConfig:
    loss_scale: float | str = option(
        _PRECISION.loss_scale, "a static loss scale, or dynamic", choices=("dynamic",), above=0
    )
    init_scale: float = option(_PRECISION.init_scale, "first loss scale when dynamic", above=0)
    growth_interval: int = option(
        _PRECISION.growth_interval, "steps without overflow before the scale grows", low=1
    )
    min_loss_scale: float | None = option(
        _PRECISION.min_loss_scale, f"floor of the dynamic scale ({_BOUNDED})", above=0
    )
    max_loss_scale: float | None = option(
        _PRECISION.max_loss_scale, f"its ceiling ({_BOUNDED}; null: 2**24)", above=0
    )
    keep_batchnorm_fp32: bool | None = option(
        _PRECISION.keep_batchnorm_fp32,
        f"BatchNorm in fp32 in a model whose weights are half; null: {_KEEPS}",
        null_is=lambda of: REGISTRY[of("backend")].keeps_batchnorm if of("backend") in [*REGISTRY] else None,
    )
    keep_fp32: list[str] | None = option(
        None,
        "modules kept in fp32: layer4.2,*.bn3; under any backend, with all below them, by their names in the "
        "network, shell-style stars too (* also goes across dots); in a YAML file in quotes, or as a list",
        names=True,
    )


@dataclass
class TrainingConfig:
    accumulate: int = option(1, "micro-batches per optimizer step", low=1)
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
    )
    find_unused_parameters: bool = option(
        False,
        "with several processes: look in each step for parameters that take no part in the loss, as "
        "DistributedDataParallel's option of that name",
        role=Role.MAY_DIFFER,
    )


@dataclass
class EvalConfig:
    every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", low=1)
    autocast: bool = option(False, "evaluate inside the backend's forward context instead of full precision")
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
        "auto (first of cuda, mps, cpu) or cuda:N",
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
        hints={"torch.compile": "compile", "inductor": "compile", "true": "compile", "graph": "cuda_graph"},
    )
    tf32: bool = option(
        False,
        "let the fp32 operations of a mixed-precision backend use TF32, also in the evaluation; "
        "backend=tf32 is fp32 with TF32",
    )
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
        "auto: go on with an unfinished run; one of this config in output_dir, where there is one",
        role=Role.BOOKKEEPING,
        choices=("auto", "never"),
        hints={"true": "auto", "allow": "auto", "must": "auto", "false": "never"},
    )
    model: ModelConfig = group(ModelConfig)
    data: DataConfig = group(DataConfig)
    task: TaskConfig = group(TaskConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    schedule: ScheduleConfig = group(ScheduleConfig)
    precision: PrecisionConfig = group(PrecisionConfig)
    training: TrainingConfig = group(TrainingConfig)
    eval: EvalConfig = group(EvalConfig)
    log: LogConfig = group(LogConfig)
    diagnostics: DiagnosticsConfig = group(DiagnosticsConfig)
    checkpoint: CheckpointConfig = group(CheckpointConfig, Role.BOOKKEEPING)
    published: PublishedConfig = group(PublishedConfig, Role.BOOKKEEPING)
    plan: PlanConfig = group(PlanConfig, Role.BOOKKEEPING)
    wandb: WandbConfig = group(WandbConfig, Role.BOOKKEEPING)

    def to_dict(self) -> dict[str, Any]:
        """The whole tree as plain values, as it is logged; no free tree that is empty: W&B keeps one in an
        offline run and loses it on its server.
        """
        found = dataclasses.asdict(self)
        for leaf in TREES:
            group, _, name = leaf.key.rpartition(".")
            if not found[group][name]:
                del found[group][name]
        return found

    def value(self, key: str) -> Any:
        """The value at a dotted key; None of what a free tree does not have."""
        value: Any = self
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        return value

    def set(self, key: str, value: Any) -> None:
        """Put a value that has been checked at the dotted key of an option."""
        group, _, name = key.rpartition(".")
        setattr(getattr(self, group) if group else self, name, value)


LEAVES: dict[str, Leaf] = {leaf.key: leaf for leaf in leaves(Config)}
TREES = tuple(leaf for leaf in LEAVES.values() if leaf.is_tree)
GROUPS = {key.rpartition(".")[0] for key in LEAVES} - {""}


def find_option(key: str) -> tuple[Leaf, list[str]] | None:
    """The option of that key, and where in it if it is a free tree: `model.kwargs` and `[width]`."""
    if key in LEAVES:
        return LEAVES[key], []
    for tree in TREES:
        if key.startswith(f"{tree.key}.") and all(path := key.removeprefix(f"{tree.key}.").split(".")):
            return tree, path
    return None


def with_role(*roles: Role) -> frozenset[str]:
    """The keys of the options with one of these roles, and of the groups that hold no others (`wandb`)."""
    keys = {key for key, leaf in LEAVES.items() if leaf.role in roles}
    others = {key.rpartition(".")[0] for key in LEAVES.keys() - keys}
    return frozenset(keys | (GROUPS - others))
