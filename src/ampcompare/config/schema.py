"""The options of a run as an OmegaConf structured config: every key with its default, help, range and role.

Keys that a comparison varies (backend, seed, batch size, ...) are at the top level, so that sweeps and W&B
can group by them. The whole config is logged. This module answers `--help`: it must stay free of torch and
OmegaConf.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ampcompare.config import task_spec
from ampcompare.config.option_spec import OptionSpec, Role, group, option, option_specs
from ampcompare.data.sources import SOURCES
from ampcompare.plugins import BACKENDS, DATA, LOSSES, METRICS, MODELS
from ampcompare.precision.registry import LABELS_BY_ALIAS, REGISTRY, PrecisionOptions

_PRECISION = PrecisionOptions  # which has the defaults
_BOUNDED = ", ".join(name for name, backend in REGISTRY.items() if backend.bounded_scale)
_HALF = {name: backend.keeps_batchnorm for name, backend in REGISTRY.items() if backend.half_weights}
_BACKENDS = ", ".join(f"{name} = {backend.description}" for name, backend in REGISTRY.items())
_ROOTS = "; ".join(f"{source.name}: {source.root}" for source in SOURCES.values() if source.root)
_KEEPS = ", ".join(f"{name} {'yes' if keeps else 'no'}" for name, keeps in _HALF.items())


@dataclass
class ModelConfig:
    """The network."""

    name: str = option(
        "resnet50",
        "network, also timm:NAME, ./net.py:build",
        choices=("resnet50", "resnet18", "resnet152", "resnet20", "tiny"),
        plugin=MODELS,
    )
    stem: str = option(
        "cifar",
        "stem of a built-in ResNet; cifar: 3x3 stride 1, no max-pool; imagenet: 7x7 stride 2, max-pool",
        choices=("cifar", "imagenet"),
    )
    zero_init_residual: bool = option(
        False, "start with residual branches at 0 in a built-in ResNet (the weight of their last BatchNorm)"
    )
    kwargs: dict[str, Any] = option({}, "arguments of a network that is not built in, by name")


@dataclass
class DataConfig:
    """The data and how they are prepared."""

    source: str = option("cifar10", "data, also image_folder, ./data.py:build", choices=SOURCES, plugin=DATA)
    kwargs: dict[str, Any] = option(
        {}, "arguments of a source that is not built in, by name; synthetic takes size, in pixels (32)"
    )
    # On resume the data themselves are compared.
    root: str | None = option(None, f"folder of the data; {_ROOTS}", role=Role.MAY_DIFFER)
    train_limit: int | None = option(None, "training images at most, class-balanced", minimum=1)
    test_limit: int | None = option(None, "test images at most, class-balanced", minimum=1)
    augment: bool = option(True, "random crop with padding 4 and horizontal flip of training images")
    # The batches are the same with any number of workers.
    workers: int | None = option(
        None,
        "worker processes of a map-style Dataset; null: one less than the CPU cores, at most 4",
        minimum=0,
        role=Role.MAY_DIFFER,
    )
    mean: list[float] = option(
        [0.4914, 0.4822, 0.4465], "mean of each channel, subtracted; pixels are 0 to 1"
    )
    std: list[float] = option([0.2023, 0.1994, 0.2010], "standard deviation of each channel, divides")


@dataclass
class TaskConfig:
    """The loss and the metrics."""

    loss: str = option(
        task_spec.CROSS_ENTROPY,
        "what is minimised: a built-in loss, or fn(outputs, targets) that gives the mean as a 0-d tensor (a "
        "class is called without arguments first)",
        choices=task_spec.DEFAULT_METRICS,
        hints=task_spec.HINTS,
        plugin=LOSSES,
    )
    metrics: list[str] | None = option(
        None,
        "what an evaluation scores beside the loss, as eval/NAME: built-in metrics, or fn(outputs, targets) "
        'that gives a value a sample, or a 0-d mean, with fn.better = "higher" or "lower" where its name '
        "does not say; null: " + task_spec.DEFAULT_METRICS_TEXT,
        choices=task_spec.BUILT_IN_METRICS,
        plugin=METRICS,
        null_means=lambda value_of: [*task_spec.metric_names(value_of("task.loss"), None)],
    )
    metric: str | None = option(
        None,
        f"the one of them that is compared, or {task_spec.LOSS}; null: the first, "
        f"or {task_spec.LOSS} if there is none",
        null_means=lambda value_of: task_spec.default_metric(value_of("task.loss"), value_of("task.metrics")),
    )


@dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = option("sgd", "optimizer", choices=("sgd", "adam", "adamw"))
    lr: float = option(0.1, "peak learning rate", above=0)
    momentum: float = option(0.0, "momentum of sgd", minimum=0, below=1)
    nesterov: bool = option(False, "Nesterov momentum (sgd)")
    weight_decay: float = option(0.0, "weight decay", minimum=0)
    fused: bool | None = option(
        None,
        "one kernel for the step, and skipped steps decided on the device; null: on a GPU (same results)",
    )


@dataclass
class ScheduleConfig:
    """The schedule of the learning rate."""

    name: str = option("cosine", "learning rate after warm-up", choices=("cosine", "constant", "multistep"))
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from 0", minimum=0)
    milestones: list[float] | None = option(
        None, "epochs after which multistep multiplies the learning rate by schedule.gamma", above=0
    )
    gamma: float = option(0.1, "factor of multistep", above=0)


@dataclass
class PrecisionConfig:
    """The options of backends: loss scale, and modules that stay in fp32."""

    loss_scale: float | str = option(
        _PRECISION.loss_scale, "a static loss scale, or dynamic", choices=("dynamic",), above=0
    )
    init_scale: float = option(_PRECISION.init_scale, "first dynamic loss scale", above=0)
    growth_interval: int = option(
        _PRECISION.growth_interval, "steps without overflow before the loss scale doubles", minimum=1
    )
    min_loss_scale: float | None = option(
        _PRECISION.min_loss_scale, f"floor of the dynamic loss scale ({_BOUNDED})", above=0
    )
    max_loss_scale: float | None = option(
        _PRECISION.max_loss_scale, f"ceiling of the dynamic loss scale ({_BOUNDED}; null: 2**24)", above=0
    )
    keep_batchnorm_fp32: bool | None = option(
        _PRECISION.keep_batchnorm_fp32,
        f"BatchNorm in fp32 in a model with 16-bit weights; null: {_KEEPS}",
        null_means=lambda value_of: _HALF.get(str(value_of("backend"))),
    )
    keep_fp32: list[str] | None = option(
        None,
        "modules kept in fp32: layer4.2,*.bn3; with their submodules, under any backend; names of the model, "
        "with shell-style wildcards (* matches dots, too); in a YAML file in quotes or as a list",
        is_set=True,
    )


@dataclass
class TrainingConfig:
    """The options of a training step, apart from the optimizer."""

    accumulate: int = option(1, "micro-batches per optimizer step", minimum=1)
    clip_norm: float | None = option(None, "clip the L2 norm of the true gradients", above=0)
    clip_value: float | None = option(None, "clip each true gradient element to +-this", above=0)
    gradient_penalty: float = option(0.0, "weight of the L2 norm of the gradients in the loss", minimum=0)
    label_smoothing: float = option(0.0, "label smoothing of the cross entropy", minimum=0, below=1)
    on_nan: str = option("stop", "if the loss is not finite at a scale of 1", choices=("stop", "continue"))
    on_nonfinite_buffers: str = option(
        "say",
        "if a skipped step leaves infinite or NaN BatchNorm statistics; say: print it; restore: put back the "
        "buffers from before the step (copies them in each step)",
        choices=("say", "restore"),
    )
    find_unused_parameters: bool = option(
        False, "as in DistributedDataParallel, with several processes", role=Role.MAY_DIFFER
    )


@dataclass
class EvalConfig:
    """When and how the model is evaluated."""

    every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", minimum=1)
    autocast: bool = option(False, "evaluate inside the backend's forward context instead of full precision")
    batch_size: int = option(512, "images per evaluation batch", minimum=1)


@dataclass
class LogConfig:
    """Which steps end a row, and which count as warm-up."""

    every: int = option(50, "optimizer steps between rows", minimum=1)
    warmup_steps: int = option(
        10, "first steps left out of throughput, step times and peak memory", minimum=0, role=Role.MAY_DIFFER
    )


@dataclass
class DiagnosticsConfig:
    """The options of diagnostics."""

    every: int | None = option(100, "optimizer steps between gradient diagnostics; null: none", minimum=1)


@dataclass
class CheckpointConfig:
    """When checkpoints are written."""

    every_epochs: int | None = option(1, "epochs between checkpoints", minimum=1)
    every_minutes: float | None = option(
        10.0,
        "minutes between checkpoints, within epochs too; both null: no checkpoint, even at the end",
        above=0,
    )


@dataclass
class PublishedConfig:
    """The publication that a run repeats; its setting gives the defaults of other options."""

    name: str | None = option(None, "publication to repeat; a name of configs/published, or a file")
    arm: str = option("", "arm of the publication; empty: only what its arms share")  # may be called `none`
    scale: float = option(1.0, "fraction of its epochs, images and batch size", above=0, maximum=1)
    network: str | None = option(None, "another network, for a quick look", choices=("tiny",))


@dataclass
class PlanConfig:
    """The analysis plan, fixed before the runs. Each record has it, and no run trains by it.

    A sweep adds the position of a run to the recorded plan: `arm` (first, last) of the control, `block` and
    `place`.
    """

    margin: float | None = option(
        None,
        "equivalence margin in the unit of the report, such as points of accuracy; null: its own",
        above=0,
    )
    target: float | None = option(
        None,
        "target of the time to target, as logged, such as 0.93; null: what the baseline reaches",
        above=0,
    )
    looks: list[int] | None = option(
        None,
        "numbers of seeds at interim looks, which may end the comparison; null: one, at the end",
        minimum=2,
    )
    max_seeds: int | None = option(None, "seeds at most, if seeds are added until all is decided", minimum=2)
    control: str = option(
        "none",
        "A/A control: the baseline again as its own group; bookends: first and last in the sweep",
        choices=("none", "bookends"),
        hints={"null": "none", "false": "none", "true": "bookends"},
    )


@dataclass
class WandbConfig:
    """The run on W&B."""

    mode: str = option(
        "auto",
        "auto: online with an API key, else offline; disabled: no record",
        choices=("auto", "online", "offline", "disabled"),
        hints={"off": "disabled", "none": "disabled", "false": "disabled", "dryrun": "offline"},
    )
    project: str = option(
        "comparison-amp",
        "project",
        pattern=r"[^/\\#?%:\x00-\x1f]{1,128}",
        pattern_help=r"1 to 128 characters without / \ # ? % :",
    )
    entity: str | None = option(None, "user or team; null: the default of the API key")
    group: str | None = option(None, "group; a sweep puts its id before it")
    name: str | None = option(None, "run name; null: from backend, model and data")
    tags: list[str] = option([], "tags")
    notes: str | None = option(None, "notes")


@dataclass
class Config:
    """The options of a run."""

    backend: str = option(
        "none",
        f"precision backend, what is compared: {_BACKENDS}",
        choices=tuple(REGISTRY),
        hints=LABELS_BY_ALIAS,
        plugin=BACKENDS,
    )
    seed: int = option(
        223, "seed of weights, order, augmentation", minimum=0, maximum=2**63 - 1, role=Role.REPEAT
    )
    batch_size: int = option(128, "images per micro-batch", minimum=1)
    epochs: int = option(100, "passes over the training images", minimum=1)
    max_steps: int | None = option(
        None, "optimizer steps at most; the schedule stays that of epochs", minimum=1, role=Role.MAY_DIFFER
    )
    # On resume the kind of device has to be the same.
    device: str = option(
        "auto",
        "auto (first of cuda, mps, cpu) or cuda:N",
        role=Role.MAY_DIFFER,
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        pattern_help="one of auto, cpu, cuda, cuda:N, mps",
        hints={"gpu": "cuda", "0": "cuda:0", "cuda:": "cuda"},
    )
    execution: str = option(
        "eager",
        "how a step runs; compile: torch.compile; cuda_graph: the whole step as a CUDA graph; or both",
        choices=("eager", "compile", "cuda_graph", "compile_graph"),
        hints={"torch.compile": "compile", "inductor": "compile", "true": "compile", "graph": "cuda_graph"},
    )
    tf32: bool = option(
        False,
        "TF32 for the fp32 operations of a mixed-precision backend, in evaluations too; see backend=tf32",
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
        "auto: go on with an unfinished run; one with the same config in output_dir, if there is one",
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
        """Return the config as plain values, as it is logged.

        Empty free-form mappings are left out: W&B keeps them in an offline run and loses them on its server.
        """
        content = dataclasses.asdict(self)
        for key in FREE_FORM:
            group, _, name = key.rpartition(".")
            if not content[group][name]:
                del content[group][name]
        return content

    def value(self, key: str) -> Any:
        """Return the value at a dotted key, None if a free-form mapping does not have it."""
        value: Any = self
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        return value


OPTIONS: dict[str, OptionSpec] = {spec.key: spec for spec in option_specs(Config)}
FREE_FORM = tuple(key for key, spec in OPTIONS.items() if spec.is_free_form)  # mappings with any keys
GROUPS = {key.rpartition(".")[0] for key in OPTIONS} - {""}


def find_option(key: str) -> tuple[OptionSpec, list[str]] | None:
    """Return the option with this key, and the path in it if it is a free-form mapping.

    >>> spec, path = find_option("model.kwargs.width")
    >>> spec.key, path
    ('model.kwargs', ['width'])
    """
    if key in OPTIONS:
        return OPTIONS[key], []
    for mapping in FREE_FORM:
        if key.startswith(f"{mapping}.") and all(path := key.removeprefix(f"{mapping}.").split(".")):
            return OPTIONS[mapping], path
    return None


def with_role(*roles: Role) -> frozenset[str]:
    """Return the keys of the options with one of these roles, and of groups that hold no others (`wandb`)."""
    keys = {key for key, spec in OPTIONS.items() if spec.role in roles}
    others = {key.rpartition(".")[0] for key in OPTIONS.keys() - keys}
    return frozenset(keys | (GROUPS - others))
