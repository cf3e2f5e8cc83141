"""The configuration of one run: every option with its meaning, and how files and overrides become it.

Keys that a comparison turns on (backend, seed, batch size, ...) are top level, so that sweeps and W&B can group by
them. The resolved tree is logged whole. This module must stay free of torch: `--help` answers in under 0.5 s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.options import Leaf, build, convert, groups, leaves, option
from ampcompare.overrides import read_words
from ampcompare.precision import REGISTRY

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"

# What people who come from other libraries write for a backend.
BACKEND_HINTS = {
    **dict.fromkeys(("o0", "fp32", "float32", "32", "32-true", "full", "standard", "no", "off", "tf32"), "none"),
    **dict.fromkeys(
        (
            "amp",
            "torch.amp",
            "torch_amp",
            "torch-amp",
            "autocast",
            "16-mixed",
            "fp16-mixed",
            "mixed",
            "mixed_float16",
        ),
        "native",
    ),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed"), "native with precision.dtype=bfloat16"),
    **dict.fromkeys(("o1", "apex", "apex-o1", "apex.amp", "apexo1", "nvidia-apex-amp"), "apex_o1"),
    **dict.fromkeys(("o2", "apex-o2", "apexo2"), "apex_o2"),
    **dict.fromkeys(("o3", "half", "float16", "16", "16-true", "fp16-true", "pure_fp16"), "fp16"),
}


@dataclass
class ModelConfig:
    name: str = option("resnet50", "network", choices=("resnet50", "resnet18", "tiny"))
    stem: str = option(
        "cifar",
        "first layers: cifar = 3x3 stride 1, no max-pool; imagenet = 7x7 stride 2, max-pool",
        choices=("cifar", "imagenet"),
    )


@dataclass
class DataConfig:
    source: str = option("cifar10", "where images come from", choices=("cifar10", "image_folder", "synthetic"))
    root: str | None = option(
        None,
        "cifar10: folder of cifar-10-python.tar.gz; image_folder: a folder or archive with train/<class>/*",
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
    fused: bool = option(
        False, "one kernel for the whole step; with it, the skip after an overflow is decided on the device"
    )


@dataclass
class ScheduleConfig:
    name: str = option("cosine", "learning rate after warm-up", choices=("cosine", "constant"))
    warmup_epochs: float = option(0.0, "epochs of linear warm-up from 0", low=0)


@dataclass
class PrecisionConfig:
    enabled: bool = option(True, "false makes any backend a plain fp32 run")
    dtype: str = option(
        "float16",
        "low-precision type of backend=native; apex and fp16 have one",
        choices=("float16", "bfloat16"),
    )
    loss_scale: float | str = option("dynamic", "a static loss scale, or dynamic", choices=("dynamic",), above=0)
    init_scale: float = option(65536.0, "first loss scale when dynamic", above=0)
    growth_interval: int = option(2000, "steps without overflow before the scale grows", low=1)
    growth_factor: float = option(2.0, "factor by which the scale grows", above=1)
    backoff_factor: float = option(0.5, "factor after an overflow", above=0, below=1)
    min_loss_scale: float | None = option(None, "floor of the dynamic scale (apex and fp16)", above=0)
    max_loss_scale: float | None = option(None, "its ceiling (apex and fp16; null: 2**24)", above=0)
    min_scale_warning: float = option(1.0, "report once when the dynamic scale falls below this", low=0)


@dataclass
class TrainingConfig:
    accumulate: int = option(1, "micro-batches of batch_size per optimizer step", low=1)
    clip_norm: float | None = option(None, "clip the L2 norm of the true gradients", above=0)
    clip_value: float | None = option(None, "clip each true gradient element to +-this", above=0)
    gradient_penalty: float = option(0.0, "weight of the L2 norm of the gradients in the loss", low=0)
    label_smoothing: float = option(0.0, "label smoothing of the cross entropy", low=0, below=1)
    on_nan: str = option("stop", "when the loss is not finite at a scale of 1", choices=("stop", "continue"))


@dataclass
class EvalConfig:
    every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", low=1)
    autocast: bool = option(False, "evaluate inside the backend's forward context instead of full precision")
    batch_size: int = option(512, "images per evaluation batch", low=1)


@dataclass
class LogConfig:
    every: int = option(50, "optimizer steps between rows", low=1)
    warmup_steps: int = option(10, "first steps left out of throughput, step times and peak memory", low=0)


@dataclass
class DiagnosticsConfig:
    every: int | None = option(100, "optimizer steps between looks at the gradients, or null for none", low=1)


@dataclass
class CheckpointConfig:
    every_epochs: None = option(None, "checkpoints are not written yet")
    every_minutes: None = option(None, "checkpoints are not written yet")


@dataclass
class WandbConfig:
    mode: str = option(
        "auto",
        "auto: online with an API key, offline without; disabled keeps no record",
        choices=("auto", "online", "offline", "disabled"),
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
    backend: str = option("none", "precision backend, what is compared", choices=tuple(REGISTRY), hints=BACKEND_HINTS)
    seed: int = option(223, "seed of weights, order and augmentation", low=0, high=2**63 - 1)
    batch_size: int = option(128, "images per micro-batch", low=1)
    epochs: int = option(100, "passes over the training images", low=1)
    max_steps: int | None = option(None, "stop after so many optimizer steps; the schedule stays that of epochs", low=1)
    device: str = option(
        "auto",
        "device: the first of cuda, mps, cpu that is there, or one by name",
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        pattern_words="one of auto, cpu, cuda, cuda:N, mps",
        hints={"gpu": "cuda", "0": "cuda:0", "cuda:": "cuda"},
    )
    execution: str = option(
        "eager",
        "how a step is run: line by line, its forward and backward compiled (torch.compile), or the whole as one CUDA "
        "graph",
        choices=("eager", "compile", "cuda_graph"),
        hints={
            **dict.fromkeys(("torch.compile", "torch_compile", "compiled", "inductor", "true"), "compile"),
            **dict.fromkeys(("cudagraph", "cuda-graph", "cuda_graphs", "cudagraphs", "graph"), "cuda_graph"),
        },
    )
    tf32: bool = option(False, "let fp32 matrix products and convolutions round to TF32 on the GPU")
    memory_format: str = option(
        "contiguous",
        "layout of images and weights",
        choices=("contiguous", "channels_last"),
        hints={"nchw": "contiguous", "nhwc": "channels_last"},
    )
    cudnn_benchmark: bool = option(True, "let cuDNN try its algorithms and keep the fastest")
    deterministic: bool = option(False, "only deterministic algorithms; slower, bit-identical on one machine")
    output_dir: str = option("runs", "folder of the run's record")
    resume: str = option("never", "resuming is not there yet", choices=("never",))
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def __post_init__(self) -> None:
        check(self)

    def to_dict(self) -> dict[str, Any]:
        """The whole tree as plain values, as it is logged."""
        return dataclasses.asdict(self)

    def value(self, key: str) -> Any:
        """The value at a dotted key."""
        found: Any = self
        for part in key.split("."):
            found = getattr(found, part)
        return found


def check(config: Config) -> None:
    """Raise UserError for values that are fine alone and wrong together."""
    optimizer, precision, data = config.optimizer, config.precision, config.data
    if optimizer.nesterov and not (optimizer.name == "sgd" and optimizer.momentum > 0):
        raise UserError("optimizer.nesterov=true: needs optimizer.name=sgd and optimizer.momentum above 0; set them")
    if optimizer.momentum and optimizer.name != "sgd":
        raise UserError(
            f"optimizer.momentum={optimizer.momentum:g}: only sgd has it; set it to 0 or use optimizer.name=sgd"
        )
    for name in ("mean", "std"):
        values = getattr(data, name)
        if len(values) != 3 or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            raise UserError(f"data.{name}={values}: expected three numbers{above}, one per channel")
    floor, ceiling = precision.min_loss_scale, precision.max_loss_scale
    if floor is not None and ceiling is not None and floor > ceiling:
        raise UserError(
            f"precision.min_loss_scale={floor:g}: expected at most precision.max_loss_scale={ceiling:g}; lower it"
        )
    if floor is not None and floor > precision.init_scale:
        raise UserError(
            f"precision.min_loss_scale={floor:g}: expected at most precision.init_scale={precision.init_scale:g}; "
            "lower it or raise init_scale"
        )
    if config.execution != "eager" and config.training.gradient_penalty:
        raise UserError(
            f"execution={config.execution!r}: training.gradient_penalty={config.training.gradient_penalty:g} needs the "
            "gradient of a gradient, which this execution does not give; use execution=eager"
        )
    if config.execution == "cuda_graph" and config.training.accumulate > 1:
        raise UserError(
            f"execution='cuda_graph': training.accumulate={config.training.accumulate} has more than one micro-batch "
            "in a step, the graph holds one; use execution=compile, or accumulate=1 with a larger batch_size"
        )
    backend = REGISTRY[config.backend]
    if precision.enabled:
        if precision.dtype not in backend.dtypes:
            raise UserError(
                f"precision.dtype={precision.dtype!r}: backend={config.backend} is {backend.dtypes[0]} by definition; "
                "leave it out, or use backend=native"
            )
        if (floor is not None or ceiling is not None) and not backend.bounded_scale:
            key = "min_loss_scale" if floor is not None else "max_loss_scale"
            raise UserError(
                f"precision.{key}={floor if floor is not None else ceiling:g}: backend={config.backend} has neither "
                "floor nor ceiling for the loss scale; leave it out, or use backend=apex_o1"
            )
    if data.source == "image_folder" and data.root is None:
        raise UserError(
            "data.root=None: data.source=image_folder needs a folder or archive with train/<class>/* and "
            "test/<class>/*; set data.root=PATH"
        )


def load_config(name: str | Iterable[str] | None = None, overrides: Iterable[str] = ()) -> Config:
    """The config from YAML files and words such as `key=value` (see `overrides.py`), the later one winning.

    `name` is a path, or the name of a file in `configs/` with or without `.yaml`, or several; None means the
    defaults alone.
    Raises UserError with one line that names key, value, what is allowed and what to do.
    """
    values: dict[str, Any] = {}
    for one in [name] if isinstance(name, str) else name or ():
        path = find_config(one)
        content = read_yaml(path)
        if "benchmark" in content:
            raise UserError(f"{path}: the config of a benchmark; run it with: ampcompare bench {content['benchmark']}")
        _merge(values, content, origin=f"{path.name}: ")
    for key, value in read_words(overrides, LEAVES):
        _merge(values, _nest(key, value))
    return build(Config, values)


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it would not take the value whatever the others are."""
    _merge({}, _nest(key, value))


def find_config(name: str) -> Path:
    """The file that `--config` names."""
    candidates = [Path(name), CONFIG_DIR / name, CONFIG_DIR / f"{name}.yaml"]
    try:
        for path in candidates:
            if path.is_file():
                return path
    except (OSError, ValueError) as problem:  # a name too long, a NUL in it, no right to look
        raise UserError(f"--config {name!r}: cannot be read ({problem})") from None
    known = ", ".join(sorted(p.stem for p in CONFIG_DIR.glob("*.yaml")))
    raise UserError(f"--config {name!r}: no such file; expected a path or one of {known}")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of options as nested dictionaries. Raises UserError naming file and line."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as problem:
        raise UserError(f"{path}: cannot be read as YAML: {problem}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form key: value, found a {type(content).__name__}")
    if "method" in content and "parameters" in content:
        raise UserError(
            f"{path}: this is a sweep, not a config; run it with: wandb sweep {path} (then wandb agent), "
            "or give --config a file of configs/"
        )
    return {str(key): value for key, value in content.items()}


def typed_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a nested or flat tree, by dotted key. Raises UserError."""
    values: dict[str, Any] = {}
    _merge(values, tree)
    return values


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(values: dict[str, Any], tree: Mapping[Any, Any], prefix: str = "", origin: str = "") -> None:
    """Convert a nested tree of raw values into `values`, keyed by dotted names."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parse(value) if isinstance(value, str) else value
            if inner is None:
                continue  # `optimizer:` with nothing under it
            if not isinstance(inner, Mapping):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{origin}{key}={value!r}: a group of options; set one of them: {known}")
            _merge(values, inner, f"{key}.", origin)
        elif key in LEAVES:
            values[key] = _convert(LEAVES[key], value, origin)
        elif "." in str(name):  # a flat key in a file: `optimizer.lr: 0.05`
            _merge(values, _nest(str(name), value), prefix, origin)
        else:
            raise _unknown(key, origin)


def _convert(leaf: Leaf, value: Any, origin: str) -> Any:
    if isinstance(value, str) and "${" in value:
        raise UserError(f"{origin}{leaf.key}={value!r}: interpolation is not supported; write the value out")
    # A text stays as it is typed; anything else in a word is read as YAML: lists, mappings, numbers.
    is_list = str(leaf.base).startswith("list")
    parsed = _parse(value) if isinstance(value, str) and is_list else value
    try:
        return convert(leaf, parsed)
    except UserError as problem:
        raise UserError(f"{origin}{problem}") from None


def _parse(text: str) -> Any:
    """A word as YAML, the text itself where it is none. W&B's agent writes lists and mappings as Python does."""
    import ast

    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    try:
        return OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)["value"]  # type: ignore[index, call-overload]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, KeyError, RecursionError):
        return text


def _unknown(key: str, origin: str) -> UserError:
    from difflib import get_close_matches

    near = get_close_matches(key, LEAVES, 1, 0.6)
    if not near:  # `lr` for `optimizer.lr`
        last = key.rpartition(".")[2]
        near = [name for name in LEAVES if name.rpartition(".")[2] == last]
    tail = f"did you mean {near[0]}?" if near else "python run_experiment.py --help lists every key"
    return UserError(f"{origin}{key}: no such key; {tail}")


LEAVES: dict[str, Leaf] = {leaf.key: leaf for leaf in leaves(Config)}
GROUPS: set[str] = groups(Config)
