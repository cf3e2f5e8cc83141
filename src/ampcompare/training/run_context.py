"""Everything a run needs (config, data, loaders), shared by `run`, `bench` and `why`."""

import dataclasses
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

from ampcompare import metrics
from ampcompare.config.load import Config, check_sweep_values, config_from_cli
from ampcompare.config.run_series import PER_RUN
from ampcompare.config.schema import WEIGHTS
from ampcompare.config.validate import resolve_backend, validate
from ampcompare.data.batch import Batch, Field, map_tensors
from ampcompare.data.dataset import SampleSplit, TensorSplit
from ampcompare.data.factory import Dataset
from ampcompare.data.sources import SOURCES
from ampcompare.models import describe_source
from ampcompare.precision import get_backend
from ampcompare.precision.cpu_arithmetic import list_fp32_operations
from ampcompare.precision.registry import PLAIN
from ampcompare.precision.weight_dtypes import (
    describe_frozen_parts,
    find_16bit_dtype,
    list_trainable_dtypes,
)
from ampcompare.system import device as machine
from ampcompare.system.distributed import DistributedContext
from ampcompare.system.environment import describe_arithmetic, describe_environment, name_machine
from ampcompare.training.factory import allows_tf32, build_trainer, find_remedy, is_fused, load_data
from ampcompare.training.fp32_remedy import SAMPLES
from ampcompare.training.loaders import check_data, count_workers, make_loader, with_batch_size_of_loader
from ampcompare.training.torch_compile import check_execution
from ampcompare.training.trainer import Trainer


def make_config(overrides: Sequence[str], **replacements: Any) -> Config:
    """Return the config that the overrides of a run ask for, with some options replaced.

    If strict fp32 replaces another backend, `tf32=true` and `precision.weights=keep` among the overrides are
    dropped.

    Args:
        overrides: Overrides as on the command line of a run.
        **replacements: Options with the value that replaces any other, such as `backend="none"`.

    Raises:
        UserError: An override is wrong, or the backend cannot be loaded.
    """
    if replacements.get("backend") == PLAIN:
        replacements = {"tf32": False, WEIGHTS: "float32", **replacements}
    config = config_from_cli([*overrides, *(f"{key}={value}" for key, value in replacements.items())])
    check_sweep_values(config)
    resolve_backend(config)
    return config


def with_backend(config: Config, backend: str) -> Config:
    """Return the config with another backend, as `make_config` does from the overrides of a run.

    Raises:
        UserError: The backend cannot be loaded, or does not fit the options.
    """
    changed = dataclasses.replace(config, backend=backend)
    if backend == PLAIN:
        precision = dataclasses.replace(config.precision, weights="float32")
        changed = dataclasses.replace(changed, precision=precision, tf32=False)
    validate(changed)
    resolve_backend(changed)
    return changed


def with_synthetic_data(config: Config) -> Config:
    """Return the config with synthetic images in place of a built-in data set.

    Nothing has to be downloaded then, and a step costs the same. Data of the user stay.
    """
    source = SOURCES.get(config.data.source)
    if source is None or not source.classes or source.is_synthetic:
        return config
    one_step = config.batch_size * config.training.accumulate
    data = dataclasses.replace(
        config.data, source="synthetic", root=None, kwargs={}, train_limit=one_step, test_limit=one_step
    )
    return dataclasses.replace(config, data=data)


@dataclass(frozen=True)
class RunContext:
    """The data and loaders of a config, from which trainers are built under any backend.

    Attributes:
        data: The training and the test split.
        train: The loader of the training split, as `make_loader` returns it.
        test: The loader of the test split.
    """

    config: Config
    world: DistributedContext
    data: Dataset
    train: Any
    test: Any

    def build_trainer(self, config: Config | None = None) -> Trainer:
        """Return a new trainer with the initial weights of the config's seed.

        Args:
            config: Other options, such as another backend; None: those of the context.

        Raises:
            UserError: Model, data and options do not fit, in all processes.
        """
        config = config or self.config
        return build_trainer(config, self.data, self.train, self.world.device, self.world, test=self.test)

    def find_remedy(self) -> str:
        """Return what helps a training step that fails under the backend and runs in fp32, or "".

        It ends a message. The first batch is tried again (`fp32_remedy`).
        """

        def load_batch() -> Batch:
            return self.first_steps(1, samples=SAMPLES)[0][0]

        return find_remedy(self.config, self.data, self.train, self.world.device, load_batch)

    def has_data_of(self, config: Config, world: DistributedContext) -> bool:
        """Return whether the data of this context are those of other options, which may have another seed.

        They are if they lie in memory, where a training does not change them, and no function took the seed.
        """
        are_in_memory = isinstance(self.data.train, TensorSplit) and isinstance(self.data.test, TensorSplit)
        if not are_in_memory or self.data.takes_seed or world != self.world:
            return False
        own = dataclasses.replace(self.config, **{key: getattr(config, key) for key in PER_RUN})
        return own == config

    def first_steps(self, steps: int, *, samples: int | None = None) -> list[list[Batch]]:
        """Return the micro-batches of the first steps, a list for each step.

        Args:
            samples: The number of samples that are kept of each micro-batch; None: all.
        """

        def copy_samples(field: Field) -> Field:
            return map_tensors(field, lambda tensor: tensor[:samples].clone())

        batches = chain.from_iterable(self.train.epoch(number) for number in count())
        copies = ((copy_samples(inputs), copy_samples(targets)) for inputs, targets in batches)
        return [[*islice(copies, self.config.training.accumulate)] for _ in range(steps)]

    def describe_environment(self, trainer: Trainer) -> dict[str, Any]:
        """Return what the record says of machine, effective settings, and user code.

        Call it in all processes: they exchange the names of their machines.
        """
        config = self.config
        device = self.world.device
        settings = {
            **machine.current_numerics(),
            "memory_format": (
                "channels_last" if machine.is_channels_last(config.memory_format, device) else "contiguous"
            ),
            "execution": config.execution,
            "fused": is_fused(config, device),
            "processes": self.world.size,
            **self._describe_precision(trainer),
            **describe_source(config.model.name, trainer.model),
            **trainer.task.record(self.data.test.sample[1]),
            **self.data.recorded,
            "data_fingerprint": self.data.fingerprint,
        }
        if self.data.train_fingerprint:
            settings["train_data"] = self.data.train_fingerprint
        if isinstance(self.data.train, SampleSplit):
            settings["data_workers"] = count_workers(config, self.world)
        return describe_environment(device, **settings, machine=name_machine(device, self.world))

    def _describe_precision(self, trainer: Trainer) -> dict[str, Any]:
        """Return the dtypes of weights and arithmetic, and the metadata of a plug-in backend."""
        device = self.world.device
        precision = trainer.precision
        weights = list_trainable_dtypes(trainer.model.parameters())
        dtype = precision.metadata.dtype
        if precision.metadata.is_fp32:  # with `precision.weights=keep` it may train in 16 bits
            dtype = find_16bit_dtype(weights) or dtype
        settings = {
            metrics.PRECISION_DTYPE: dtype,
            metrics.WEIGHT_DTYPES: weights,
            **describe_arithmetic(device),
            **precision.metadata.record(),
        }
        lists: dict[str, Any] = {
            metrics.FROZEN_WEIGHTS: describe_frozen_parts(trainer.model),
            metrics.FP32_OPERATIONS: [*list_fp32_operations(device, precision.metadata.dtype)],
            metrics.KEPT_FP32: [*precision.fp32_modules],
        }
        return settings | {key: value for key, value in lists.items() if value}

    def describe_data(self) -> dict[str, Any]:
        """Return what the summary of a run says of its data, by metric key."""
        test = self.data.test
        classes = self.data.classes
        facts = {
            metrics.TEST_SET: test.fingerprint(classes),
            metrics.TEST_IMAGES: test.size,
            metrics.CLASSES: len(classes) or None,
        }
        return {key: value for key, value in facts.items() if value is not None}


def prepare_run(
    config: Config, world: DistributedContext | None = None, before: RunContext | None = None
) -> RunContext:
    """Set the device up and load the data.

    The options of the context have the batch size of the user's DataLoader, if no batch size is given.

    Args:
        world: The processes of the run; None: this process alone.
        before: The context of an earlier run of this process. Its data are used again if the options differ
            only in the seed, and if the seed cannot change the data.

    Raises:
        UserError: The input is wrong, in all processes.
    """
    world = world or DistributedContext(device=machine.resolve_device(config.device))
    with world.raise_on_all_ranks():
        if get_backend(config.backend).uses_tf32:
            machine.check_tf32(world.device, config.backend)
        machine.set_numerics(
            tf32=allows_tf32(config),
            cudnn_benchmark=config.cudnn_benchmark,
            deterministic=config.deterministic,
        )
        check_execution(config, world.device)
    if before is not None and before.has_data_of(config, world):
        train = copy(before.train)
        train.seed = config.seed
        return RunContext(config, world, before.data, train, before.test)
    with world.raise_on_all_ranks(), world.main_process_first():
        data = load_data(config)
    config = with_batch_size_of_loader(config, data)
    check_data(config, data, world)
    train, test = (
        make_loader(config, split, world.device, training=split is data.train, world=world)
        for split in (data.train, data.test)
    )
    return RunContext(config, world, data, train, test)
