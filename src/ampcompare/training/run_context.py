"""What a run stands on, built from its config: for the run itself, and to be looked at or timed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

from ampcompare import metrics
from ampcompare.config.load import Config, check_chosen, config_from_cli
from ampcompare.config.validate import resolve_backend
from ampcompare.data.batch import Batch, map_tensors
from ampcompare.data.dataset import LoaderSplit, SampleSplit
from ampcompare.data.factory import Dataset
from ampcompare.data.sources import SOURCES
from ampcompare.models import describe_source
from ampcompare.precision import get_backend
from ampcompare.precision.cpu_arithmetic import list_fp32_operations
from ampcompare.precision.registry import PLAIN
from ampcompare.system import device as machine
from ampcompare.system.distributed import World
from ampcompare.system.environment import arithmetic_of, describe_environment, name_machine
from ampcompare.training.factory import allows_tf32, build_trainer, is_fused, load_data
from ampcompare.training.loaders import check_data, count_workers, make_loader
from ampcompare.training.torch_compile import check_execution
from ampcompare.training.trainer import Trainer


def configured(words: Sequence[str], **instead: Any) -> Config:
    """The config that the words of a run name, each option in `instead` (`backend="none"`) put in its place.
    Of strict fp32 in place of another backend the words' `tf32=true` is not taken over. Raises UserError.
    """
    if instead.get("backend") == PLAIN:
        instead = {"tf32": False, **instead}
    config = config_from_cli([*words, *(f"{key}={value}" for key, value in instead.items())])
    check_chosen(config)
    resolve_backend(config)
    return config


def made_up(config: Config) -> Config:
    """The same with made-up images for data of ours of a known size, so that nothing has to be downloaded:
    what a step costs is the same.
    """
    source = SOURCES.get(config.data.source)
    if source is None or not source.classes or source.is_synthetic:
        return config
    few = config.batch_size * config.training.accumulate
    data = dataclasses.replace(
        config.data, source="synthetic", root=None, kwargs={}, train_limit=few, test_limit=few
    )
    return dataclasses.replace(config, data=data)


@dataclass(frozen=True)
class Setting:
    """Data and loaders of a config, from which trainers are built under any backend."""

    config: Config
    world: World
    data: Dataset
    train: Any  # as `make_loader` has them
    test: Any

    def trainer(self, config: Config | None = None) -> Trainer:
        """A new trainer with the first weights of the config's seed. Raises UserError in each process."""
        world = self.world
        return build_trainer(
            config or self.config, self.data, self.train, world.device, world, test=self.test
        )

    def steps(self, steps: int, *, few: int | None = None) -> list[list[Batch]]:
        """The micro-batches of the first steps, of each the first `few` samples."""
        each_step = self.config.training.accumulate
        endless = chain.from_iterable(self.train.epoch(number) for number in count())
        parts = (
            (map_tensors(x, lambda t: t[:few].clone()), map_tensors(y, lambda t: t[:few].clone()))
            for x, y in endless
        )
        return [[*islice(parts, each_step)] for _ in range(steps)]

    def environment(self, trainer: Trainer) -> dict[str, Any]:
        """What a record says of the machine, the settings in force and what is not ours; all ask."""
        config, device, precision = self.config, self.world.device, trainer.precision
        in_fp32 = list_fp32_operations(device, precision.metadata.dtype)
        last = machine.is_channels_last(config.memory_format, device)
        settings = {
            **machine.numerics_now(),
            "memory_format": "channels_last" if last else "contiguous",
            "execution": config.execution,
            "fused": is_fused(config, device),
            "processes": self.world.size,
            metrics.PRECISION_DTYPE: precision.metadata.dtype,
            **arithmetic_of(device),
            **({metrics.FP32_OPERATIONS: [*in_fp32]} if in_fp32 else {}),
            **precision.metadata.record(),
            **({metrics.KEPT_FP32: [*precision.fp32_modules]} if precision.fp32_modules else {}),
            **describe_source(config.model.name, trainer.model),
            **trainer.task.record(),
            **self.data.recorded,
        }
        if isinstance(self.data.train, SampleSplit):
            settings["data_workers"] = count_workers(config, self.world)
        return describe_environment(device, **settings, machine=name_machine(device, self.world))

    def facts(self) -> dict[str, Any]:
        """What the summary of a run says of its data."""
        test, classes = self.data.test, self.data.classes
        samples = test.samples if isinstance(test, LoaderSplit) else len(test)
        facts = {metrics.TEST_SET: test.fingerprint(classes), metrics.TEST_IMAGES: samples}
        facts[metrics.CLASSES] = len(classes) or None
        return {key: value for key, value in facts.items() if value is not None}


def set_up(config: Config, world: World | None = None) -> Setting:
    """Load what the trainings share. Raises UserError, in each process, for what is wrong with the input."""
    world = world or World(device=machine.resolve_device(config.device))
    with world.agree():
        if get_backend(config.backend).uses_tf32:
            machine.check_tf32(world.device, config.backend)
        machine.set_numerics(
            tf32=allows_tf32(config),
            cudnn_benchmark=config.cudnn_benchmark,
            deterministic=config.deterministic,
        )
        check_execution(config, world.device)
    with world.agree(), world.leader_first():
        data = load_data(config)
    check_data(config, data, world)
    train, test = (
        make_loader(config, split, world.device, training=split is data.train, world=world)
        for split in (data.train, data.test)
    )
    return Setting(config, world, data, train, test)
