"""The options of a run as an OmegaConf structured config: every key with its default, help, range and role.

Keys that a comparison varies (backend, seed, batch size, ...) are at the top level, so that sweeps and W&B
can group by them. The whole config is logged. This module answers `--help`: it must stay free of torch and
OmegaConf.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from ampcompare.config import task_spec
from ampcompare.config.option_spec import OptionSpec, Role, group, option, option_specs
from ampcompare.data.sources import SOURCES
from ampcompare.plugins import BACKENDS, DATA, LOSSES, METRICS, MODELS
from ampcompare.precision.registry import KEEP_WEIGHTS, LABELS_BY_ALIAS, REGISTRY, PrecisionOptions

PLAN_RULE = 2  # the rule by which a report decides; 1 is that of version 0.3
LOOKS = (5,)  # numbers of seeds; the default of plan.looks in a sweep
# With `--until-decided`: most of the error is kept for the last look, which has the most seeds.
SEQUENTIAL_LOOKS = (5, 10)
SEQUENTIAL_SHARES = (0.2, 0.8)
SCALE_KEYS = tuple(
    f"precision.{name}"
    for name in ("loss_scale", "init_scale", "growth_interval", "min_loss_scale", "max_loss_scale")
)
WEIGHTS = "precision.weights"  # has an effect under every backend, fp32 too
TF32 = "tf32"
BUILT_IN_ONLY = ("model.stem", "model.zero_init_residual")
PERTURBATION = "training.perturb_weights"
ONE_ULP = "one_ulp"  # its value in the control `chaos`
_PRECISION = PrecisionOptions  # which has the defaults
_BOUNDED = ", ".join(name for name, backend in REGISTRY.items() if backend.bounded_scale)
_HALF = {name: backend.keeps_batchnorm for name, backend in REGISTRY.items() if backend.half_weights}
_BACKENDS = "; ".join(f"{name}: {backend.description}" for name, backend in REGISTRY.items())
_ROOTS = "; ".join(f"{source.name}: {source.root}" for source in SOURCES.values() if source.root)
_KEEPS = ", ".join(f"{str(keeps).lower()} for {name}" for name, keeps in _HALF.items())


@dataclass
class ModelConfig:
    """The network."""

    name: str = option(
        "resnet50",
        "The network: a built-in name, timm:NAME, torchvision:NAME, or your function ./net.py:build.",
        choices=("resnet50", "resnet18", "resnet152", "resnet20", "tiny"),
        plugin=MODELS,
    )
    stem: str = option(
        "cifar",
        "First layers of a built-in ResNet. cifar: a 3x3 convolution with stride 1, no max-pooling. "
        "imagenet: a 7x7 convolution with stride 2, then max-pooling.",
        choices=("cifar", "imagenet"),
    )
    zero_init_residual: bool = option(
        False,
        "Start each residual branch of a built-in ResNet at 0, by setting the weight of its last BatchNorm "
        "to 0.",
        role=Role.HYPERPARAMETER,
    )
    kwargs: dict[str, Any] = option({}, "Arguments for a network that is not built in.")


@dataclass
class DataConfig:
    """The data and their preparation."""

    source: str = option(
        "cifar10",
        "The data: a built-in name, or your function ./data.py:build.",
        choices=SOURCES,
        plugin=DATA,
    )
    kwargs: dict[str, Any] = option(
        {},
        "Arguments for your data function. The source synthetic takes size, the image size in pixels (32).",
    )
    # On resume the data themselves are compared.
    root: str | None = option(None, f"Folder of the data. {_ROOTS}.", role=Role.SESSION)
    train_limit: int | None = option(
        None, "Maximum number of training samples, balanced over the classes. null: all.", minimum=1
    )
    test_limit: int | None = option(
        None,
        "Maximum number of test samples, balanced over the classes. null: all.",
        minimum=1,
        role=Role.MEASUREMENT,
    )
    augment: bool = option(
        True,
        "Augment training images: random crop with padding 4, and random horizontal flip.",
        role=Role.MATHEMATICS,
    )
    # The batches are the same with any number of workers.
    workers: int | None = option(
        None,
        "Worker processes that load data from a map-style Dataset. null: one less than the CPU cores, at "
        "most 4.",
        minimum=0,
        role=Role.SESSION,
    )
    mean: list[float] = option(
        [0.4914, 0.4822, 0.4465],
        "Mean of each channel, subtracted from the pixels. Pixels are between 0 and 1.",
        role=Role.HYPERPARAMETER,
    )
    std: list[float] = option(
        [0.2023, 0.1994, 0.2010],
        "Standard deviation of each channel. The pixels are divided by it.",
        role=Role.HYPERPARAMETER,
    )


@dataclass
class TaskConfig:
    """The loss and the metrics."""

    loss: str = option(
        task_spec.CROSS_ENTROPY,
        "The loss. Your own is a function fn(outputs, targets) that returns the mean as a 0-d tensor. A "
        "class is first called without arguments.",
        choices=task_spec.DEFAULT_METRICS,
        hints=task_spec.HINTS,
        plugin=LOSSES,
        role=Role.MATHEMATICS,
    )
    metrics: list[str] | None = option(
        None,
        "Metrics that an evaluation logs in addition to the loss, as eval/NAME. Your own is a function "
        "fn(outputs, targets) that returns a value per sample, or the mean as a 0-d tensor. If its name "
        'does not tell which direction is better, set fn.better = "higher" or "lower". null: '
        + task_spec.DEFAULT_METRICS_TEXT
        + ".",
        choices=task_spec.BUILT_IN_METRICS,
        plugin=METRICS,
        null_means=lambda value_of: [*task_spec.metric_names(value_of("task.loss"), None)],
    )
    metric: str | None = option(
        None,
        f"The metric that reports compare: one of task.metrics, or {task_spec.LOSS}. null: the first of "
        f"task.metrics, or {task_spec.LOSS} if there are none.",
        null_means=lambda value_of: task_spec.default_metric(value_of("task.loss"), value_of("task.metrics")),
    )


@dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = option("sgd", "The optimizer.", choices=("sgd", "adam", "adamw"), role=Role.MATHEMATICS)
    lr: float = option(0.1, "Peak learning rate.", above=0)
    momentum: float = option(0.0, "Momentum of sgd.", minimum=0, below=1)
    nesterov: bool = option(False, "Use Nesterov momentum in sgd.")
    weight_decay: float = option(0.0, "Weight decay.", minimum=0)
    eps: float = option(
        1e-8,
        "What adam and adamw add to the denominator of an update. The default is 0 in fp16 weights; use 1e-4 "
        "there.",
        above=0,
    )
    fused: bool | None = option(
        None,
        "Use PyTorch's fused optimizer, which updates all weights in one kernel and skips a step without "
        "waiting for the GPU. The results are the same. null: true on a GPU, else false.",
        role=Role.EXECUTION,
    )


@dataclass
class ScheduleConfig:
    """The schedule of the learning rate."""

    name: str = option(
        "cosine", "Learning-rate schedule after the warm-up.", choices=("cosine", "constant", "multistep")
    )
    warmup_epochs: float = option(
        0.0, "Number of epochs in which the learning rate rises linearly from 0 to its peak.", minimum=0
    )
    milestones: list[float] | None = option(
        None,
        "For multistep: the epochs after which the learning rate is multiplied by schedule.gamma.",
        above=0,
    )
    gamma: float = option(0.1, "For multistep: the factor at each milestone.", above=0)


@dataclass
class PrecisionConfig:
    """The options of backends: the loss scale, and modules that stay in fp32."""

    loss_scale: float | str = option(
        _PRECISION.loss_scale, "Loss scale: dynamic, or a fixed number.", choices=("dynamic",), above=0
    )
    init_scale: float = option(_PRECISION.init_scale, "First value of the dynamic loss scale.", above=0)
    growth_interval: int = option(
        _PRECISION.growth_interval,
        "Number of steps without overflow after which the dynamic loss scale doubles.",
        minimum=1,
    )
    min_loss_scale: float | None = option(
        _PRECISION.min_loss_scale,
        f"Smallest value of the dynamic loss scale. Applies to {_BOUNDED}. null: no minimum.",
        above=0,
    )
    max_loss_scale: float | None = option(
        _PRECISION.max_loss_scale,
        f"Largest value of the dynamic loss scale. Applies to {_BOUNDED}. null: 2**24.",
        above=0,
    )
    keep_batchnorm_fp32: bool | None = option(
        _PRECISION.keep_batchnorm_fp32,
        f"Keep BatchNorm in fp32 in a model with 16-bit weights. null: {_KEEPS}.",
        null_means=lambda value_of: _HALF.get(str(value_of("backend"))),
    )
    keep_fp32: list[str] | None = option(
        None,
        "Modules that stay in fp32, such as layer4.2,*.bn3. Names are those of the model. A name includes "
        "its submodules; * matches any characters, dots too. Works under every backend except tf32. In a "
        "YAML file write a list, or put the text in quotes.",
        is_set=True,
    )
    weights: str = option(
        _PRECISION.weights,
        "Trainable weights that arrive in another dtype, such as those of a network built in bf16. float32: "
        "convert them to fp32 before the backend prepares the model. keep: leave them. Frozen and quantised "
        "parts always keep their dtype. Works under every backend.",
        choices=("float32", KEEP_WEIGHTS),
        hints={"fp32": "float32", "true": KEEP_WEIGHTS, "false": "float32", "asis": KEEP_WEIGHTS},
    )


@dataclass
class TrainingConfig:
    """The training step."""

    accumulate: int = option(
        1, "Number of micro-batches whose gradients are accumulated for one optimizer step.", minimum=1
    )
    clip_norm: float | None = option(
        None, "Clip the L2 norm of the unscaled gradients to this value. null: no clipping.", above=0
    )
    clip_value: float | None = option(
        None,
        "Clip each element of the unscaled gradients to between minus and plus this value. null: no "
        "clipping.",
        above=0,
    )
    gradient_penalty: float = option(
        0.0, "Weight of a gradient penalty: the L2 norm of the gradients, added to the loss.", minimum=0
    )
    label_smoothing: float = option(
        0.0, "Label smoothing of the cross entropy.", minimum=0, below=1, role=Role.HYPERPARAMETER
    )
    on_nan: str = option(
        "stop",
        "What to do if the loss is infinite or NaN and no smaller loss scale can repair it: stop the run, "
        "or print a warning and continue.",
        choices=("stop", "continue"),
        role=Role.HYPERPARAMETER,
    )
    perturb_weights: str = option(
        "none",
        "Change to the initial weights. one_ulp: move each trainable weight to the next greater or next "
        "smaller number of its dtype. The seed decides the directions. A training of the baseline with this "
        "change shows how much the result depends on the last bits (`ampcompare sweep --control chaos`).",
        choices=("none", ONE_ULP),
        hints={"null": "none", "false": "none", "true": ONE_ULP, "ulp": ONE_ULP},
        role=Role.HYPERPARAMETER,
    )
    find_unused_parameters: bool = option(
        False,
        "The option of DistributedDataParallel with this name, for training with several processes.",
        role=Role.SESSION,
    )


@dataclass
class EvalConfig:
    """Evaluation."""

    every: int = option(
        1, "Number of epochs between evaluations. The last epoch is always evaluated.", minimum=1
    )
    autocast: bool = option(False, "Evaluate with the casts of the backend instead of in full precision.")
    batch_size: int = option(512, "Number of samples per evaluation batch.", minimum=1)


@dataclass
class LogConfig:
    """Logging."""

    every: int = option(50, "Number of optimizer steps between logged rows.", minimum=1)
    warmup_steps: int = option(
        10,
        "Number of first steps that are left out of throughput, step times and energy. Peak memory leaves "
        "out the first 3 of them.",
        minimum=0,
        role=Role.SESSION,
    )


@dataclass
class DiagnosticsConfig:
    """Diagnostics of gradients, activations and weight updates."""

    every: int | None = option(
        100,
        "Number of optimizer steps between diagnostic steps, which measure gradients, activations and "
        "weight updates. null: none.",
        minimum=1,
    )


@dataclass
class CheckpointConfig:
    """Checkpoints."""

    every_epochs: int | None = option(
        1, "Number of epochs between checkpoints. null: none at the ends of epochs.", minimum=1
    )
    every_minutes: float | None = option(
        10.0,
        "Number of minutes between checkpoints, within epochs too. If this and checkpoint.every_epochs are "
        "null, no checkpoint is written, not even at the end.",
        above=0,
    )


@dataclass
class PublishedConfig:
    """The publication that a run repeats. Its settings become the defaults of other options."""

    name: str | None = option(
        None, "Publication whose settings the run uses: a name in configs/published, or a YAML file."
    )
    arm: str = option(
        "", "Arm of the publication. Empty: only the settings that its arms share."
    )  # may be called `none`
    scale: float = option(
        1.0,
        "Fraction of the publication's epochs, images and batch size to use, for a quick try.",
        above=0,
        maximum=1,
    )
    network: str | None = option(
        None, "Another network than the publication's, for a quick try.", choices=("tiny",)
    )


@dataclass
class PlanConfig:
    """The analysis plan, fixed before the runs. It is recorded and does not change the training.

    A sweep adds the position of a run to the recorded plan: `arm` (first, last or chaos) of a control,
    `block` and `place`.
    """

    margin: float | None = option(
        None,
        "Equivalence margin in the unit of the report, such as points of accuracy. null: the report's "
        "default.",
        above=0,
    )
    target: float | None = option(
        None,
        "Value of the metric, as logged, such as 0.93: the report compares the time to reach it. null: none.",
        above=0,
    )
    looks: list[int] | None = option(
        None,
        "Numbers of seeds at which the runs are compared; a comparison may end at each. null: one look, at "
        "the end.",
        minimum=2,
    )
    shares: list[float] | None = option(
        None,
        "Fraction of the error for each of plan.looks, such as [0.2,0.8]; together 1. null: equal fractions.",
        above=0,
    )
    rule: int = option(
        PLAN_RULE,
        "Version of the rule by which the report decides. It is recorded, so that a later version decides "
        "these runs in the same way.",
        minimum=1,
        maximum=PLAN_RULE,
    )
    max_seeds: int | None = option(
        None, "Maximum number of seeds for `ampcompare sweep --until-decided`.", minimum=2
    )
    control: str = option(
        "none",
        "Control: run the baseline again as a group of its own. bookends: an A/A control, before and after "
        "all other runs of the sweep. chaos: with the last bits of the initial weights changed "
        "(training.perturb_weights=one_ulp), among the other runs.",
        choices=("none", "bookends", "chaos"),
        hints={"null": "none", "false": "none", "true": "bookends"},
    )


@dataclass
class WandbConfig:
    """The record on W&B."""

    mode: str = option(
        "auto",
        "Where the run is recorded. auto: online if there is an API key, else offline. disabled: no record.",
        choices=("auto", "online", "offline", "disabled"),
        hints={"off": "disabled", "none": "disabled", "false": "disabled", "dryrun": "offline"},
    )
    project: str = option(
        "comparison-amp",
        "Project on W&B.",
        pattern=r"[^/\\#?%:\x00-\x1f]{1,128}",
        pattern_help=r"1 to 128 characters without / \ # ? % :",
    )
    entity: str | None = option(None, "User or team on W&B. null: the default of the API key.")
    group: str | None = option(None, "Group on W&B. A sweep puts its id before it.")
    name: str | None = option(None, "Name of the run. null: made from backend, model and data.")
    tags: list[str] = option([], "Tags of the run.")
    notes: str | None = option(None, "Notes about the run.")


@dataclass
class Config:
    """The options of a run.

    Attributes:
        not_given: Options that neither the command line nor a named file sets, so that the data may decide
            them. Empty where this is not known.
    """

    backend: str = option(
        "none",
        f"The precision backend to train under. {_BACKENDS}. Your own: ./file.py:Name.",
        choices=tuple(REGISTRY),
        hints=LABELS_BY_ALIAS,
        plugin=BACKENDS,
        role=Role.PRECISION,
    )
    seed: int = option(
        223,
        "Seed of the weights, of the order of the data and of the augmentation.",
        minimum=0,
        maximum=2**63 - 1,
        role=Role.SEED,
    )
    batch_size: int = option(
        128,
        "Number of samples per micro-batch. A DataLoader of your own has its own batch size, so leave the "
        "option out there.",
        minimum=1,
        role=Role.MATHEMATICS,
    )
    epochs: int = option(100, "Number of passes over the training data.", minimum=1, role=Role.HYPERPARAMETER)
    # The options that a recipe sets are recorded and distinguish runs, so its name does not.
    recipe: str | None = option(
        None,
        "Set of defaults for the optimizer, the schedule and label smoothing; for a network of your own "
        "it is adamw, with lr 1e-3. Options that you set take precedence, on the command line, in a config "
        "file or in a sweep. reference: sgd with the defaults below, as in the published experiment. "
        "stable: sgd with lr 0.1, Nesterov momentum 0.9, weight "
        "decay 5e-4, label smoothing 0.1, cosine, and a warm-up of a tenth of the epochs, at most 5. adamw: "
        "lr 1e-3, weight decay 0.01, cosine, the same warm-up. auto: stable for a built-in network, adamw "
        "for any other. null: reference for a built-in network, adamw for any other.",
        role=Role.PRESENTATION,
        choices=("reference", "stable", "adamw", "auto"),
    )
    max_steps: int | None = option(
        None,
        "Stop after this number of optimizer steps. The learning-rate schedule stays that of all epochs.",
        minimum=1,
        role=Role.SESSION,
    )
    # On resume the kind of device has to be the same.
    device: str = option(
        "auto",
        "Device to train on: auto, cpu, mps, cuda or cuda:N. auto takes the first of cuda, mps and cpu that "
        "exists. cuda:N is the GPU with the number N.",
        role=Role.SESSION,
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        pattern_help="one of auto, cpu, cuda, cuda:N, mps",
        hints={"gpu": "cuda", "0": "cuda:0", "cuda:": "cuda"},
    )
    execution: str = option(
        "eager",
        "How a training step is executed. eager: operation by operation. compile: by torch.compile. "
        "cuda_graph: as one CUDA graph. compile_graph: compiled, as one CUDA graph.",
        choices=("eager", "compile", "cuda_graph", "compile_graph"),
        hints={"torch.compile": "compile", "inductor": "compile", "true": "compile", "graph": "cuda_graph"},
        role=Role.EXECUTION,
    )
    tf32: bool = option(
        False,
        "Allow TF32 for the operations that a mixed-precision backend computes in fp32, in evaluations too. "
        "For fp32 with TF32 use backend=tf32.",
        role=Role.EXECUTION,
    )
    memory_format: str = option(
        "auto",
        "Memory layout of images and weights. auto: channels_last on an NVIDIA GPU, else contiguous.",
        choices=("auto", "contiguous", "channels_last"),
        hints={"nchw": "contiguous", "nhwc": "channels_last"},
        role=Role.EXECUTION,
    )
    cudnn_benchmark: bool = option(
        True, "Let cuDNN try its algorithms and keep the fastest.", role=Role.EXECUTION
    )
    deterministic: bool = option(
        False,
        "Use only deterministic algorithms. Slower; repeated runs on one machine are then bit-identical.",
        role=Role.EXECUTION,
    )
    output_dir: str = option("runs", "Folder for the record of the run.", role=Role.PRESENTATION)
    resume: str = option(
        "never",
        "Whether to continue an unfinished run with the same config in output_dir. auto: continue it, or "
        "start a new run if there is none. never: always start a new run.",
        role=Role.PRESENTATION,
        choices=("auto", "never"),
        hints={"true": "auto", "allow": "auto", "must": "auto", "false": "never"},
    )
    model: ModelConfig = group(ModelConfig, Role.NETWORK)
    data: DataConfig = group(DataConfig, Role.DATA)
    task: TaskConfig = group(TaskConfig, Role.MEASUREMENT)
    optimizer: OptimizerConfig = group(OptimizerConfig, Role.HYPERPARAMETER)
    schedule: ScheduleConfig = group(ScheduleConfig, Role.HYPERPARAMETER)
    precision: PrecisionConfig = group(PrecisionConfig, Role.PRECISION)
    training: TrainingConfig = group(TrainingConfig, Role.MATHEMATICS)
    eval: EvalConfig = group(EvalConfig, Role.MEASUREMENT)
    log: LogConfig = group(LogConfig, Role.MEASUREMENT)
    diagnostics: DiagnosticsConfig = group(DiagnosticsConfig, Role.MEASUREMENT)
    checkpoint: CheckpointConfig = group(CheckpointConfig, Role.PRESENTATION)
    published: PublishedConfig = group(PublishedConfig, Role.PRESENTATION)
    plan: PlanConfig = group(PlanConfig, Role.PRESENTATION)
    wandb: WandbConfig = group(WandbConfig, Role.PRESENTATION)

    not_given: ClassVar[frozenset[str]] = frozenset()  # no option; an instance has its own

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
# The groups, with the role of their options that declare no other.
GROUPS: dict[str, Role] = {
    field.name: field.metadata["role"]
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(field.default_factory)
}


def find_option(key: str) -> tuple[OptionSpec, list[str]] | None:
    """Return the option with this key, and the path in it if it is a free-form mapping.

    >>> spec, path = find_option("model.kwargs.width")
    >>> spec.key, path
    ('model.kwargs', ['width'])
    """
    if key in OPTIONS:
        return OPTIONS[key], []
    for mapping in FREE_FORM:
        if key.startswith(f"{mapping}."):
            path = key.removeprefix(f"{mapping}.").split(".")
            return (OPTIONS[mapping], path) if all(path) else None
    return None


def has_no_effect(key: str, backend: str | None, network: str | None) -> bool:
    """Return whether an option changes nothing under this backend and with this network.

    Under fp32 this is all of `precision` but `weights`; without loss scaling the loss scale; under a backend
    that always uses TF32 the option `tf32`; of a network that is not built in the options of built-in ones.
    For plug-in backends, which are not imported here, every option has an effect, and so has one if backend
    or network are not known (None).
    """
    if key in BUILT_IN_ONLY:
        return network is not None and network not in OPTIONS["model.name"].choices
    if backend is None or backend not in REGISTRY:
        return False
    info = REGISTRY[backend]
    if info.uses_tf32 and key == TF32:
        return True
    if info.is_fp32 and key.startswith("precision."):
        return key != WEIGHTS
    return not info.scales and key in SCALE_KEYS
