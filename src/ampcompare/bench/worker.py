"""Worker process of a benchmark: build one training, then time its steps whenever the runner asks.

The batches stay in memory: a result is what a training step costs, without loading data.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, cycle, islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from ampcompare.config.load import Config
from ampcompare.config.option_spec import Role
from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError, one_line, reason
from ampcompare.identity.agreement import BENCHMARK
from ampcompare.identity.run_identity import (
    ENVIRONMENT,
    TRAIN_DATA,
    RunIdentity,
    is_recorded_fact,
    value_text,
)
from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32, EMULATED, TEST_SET
from ampcompare.precision import get_backend
from ampcompare.runtime.signals import discard_output, set_handler
from ampcompare.system.device import (
    is_cuda,
    is_out_of_memory,
    peak_mib,
    reset_peak,
    wait_for,
)
from ampcompare.system.environment import describe_arithmetic, describe_environment
from ampcompare.system.interleaved_timing import StepTimer
from ampcompare.training.run_context import make_config, prepare_run, with_synthetic_data
from ampcompare.training.timing import FIRST_STEPS
from ampcompare.training.torch_compile import uses_compile, uses_cuda_graph
from ampcompare.training.trainer import micro_batches

BATCHES = 4  # The first batches of an epoch are used again and again.
IMAGES = "images"


@dataclass(frozen=True)
class Training:
    """A training to be timed.

    Attributes:
        step: Take the next step; return whether something was compiled or captured in it.
        samples: Samples per step.
        device: Where it trains.
        dtype: The dtype that the backend computes in.
        session: Context of all steps.
        is_captured: Whether a step is one CUDA graph.
        settings: Options by which a report finds the runs of this training.
        unit: What a sample is called: `images` or `samples`.
        preparation: What the first steps do apart from training, such as `compiling`.
        fingerprint: Model, data and the hashes that a run records of them.
        backend_source: Hash of the file of a plug-in backend; None for a built-in backend.
        train_samples: Number of samples in an epoch; None if it is not known, or if synthetic data replace a
            built-in data set.
    """

    step: Callable[[], bool]
    samples: int
    device: torch.device
    dtype: str
    session: AbstractContextManager[Any] = field(default_factory=nullcontext)
    is_captured: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    unit: str = IMAGES
    preparation: Sequence[str] = ()
    fingerprint: Mapping[str, str | None] = field(default_factory=dict)
    backend_source: str | None = None
    train_samples: int | None = None


def serve(connection: Connection, overrides: Sequence[str]) -> None:
    """Build the training of a run's options and answer the runner until it closes the connection."""
    answer(connection, lambda: build(overrides))


def answer(connection: Connection, build: Callable[[], Training]) -> None:
    """Answer the runner until it closes the connection.

    The first answer describes the training. Then each request has one answer: None asks for the warm-up, a
    number for so many timed steps. An answer with the key `failed` is the last one.
    """
    set_handler([signal.SIGINT], signal.SIG_IGN)  # The runner handles Ctrl-C, and keeps what was measured.
    # The workers of a DataLoader are children of this process, as in a run, and end with it.
    multiprocessing.set_start_method(None, force=True)
    discard_output(1, 2)  # What a network prints must not mix with the table.
    try:
        for message in _answers(connection, build()):
            connection.send(message)
    except (EOFError, BrokenPipeError):
        return
    except UserError as problem:
        connection.send({"failed": one_line(problem), "full": False})
    except Exception as problem:
        failure = f"{type(problem).__name__}: {one_line(reason(problem))}"
        connection.send({"failed": failure, "full": is_out_of_memory(problem)})


def _answers(connection: Connection, training: Training) -> Iterator[dict[str, Any]]:
    device = training.device
    arithmetic = describe_arithmetic(device).get(ARITHMETIC, {}).get(training.dtype)
    yield {
        "dtype": training.dtype,
        "is_computed_in_fp32": arithmetic in (EMULATED, COMPUTED_IN_FP32),
        "settings": dict(training.settings),
        "unit": training.unit,
        "preparation": ", ".join(training.preparation),
        "fingerprint": dict(training.fingerprint),
        "backend_source": training.backend_source,
        "train_samples": training.train_samples,
        "environment": describe_environment(device),
    }
    # A captured training takes its first steps eagerly; the capture comes after them.
    cold_steps = FIRST_STEPS + 1 if training.is_captured else 1
    timer = StepTimer(training.step, partial(wait_for, device), cold_steps)
    with training.session:
        while True:
            steps = connection.recv()
            if steps is None:
                seconds = timer.warm_up()
                if not training.is_captured:  # The peak of a captured step is that of its capture.
                    reset_peak(device)
            else:
                seconds = timer.time_turn(steps)
            yield {"rate": training.samples / seconds, "seconds": seconds, "peak_mib": peak_mib(device)}


def build(overrides: Sequence[str], *, loads: bool = False) -> Training:
    """Build the training of a run's options.

    Args:
        overrides: Options as on the command line of a run.
        loads: Whether each step loads its batch, as in a run. By default the first batches of an epoch are
            kept and used again and again.

    Raises:
        UserError: An option, the network or the data cannot be used.
    """
    original = make_config(overrides)
    config = with_synthetic_data(original)
    context = prepare_run(config)
    config = context.config
    trainer = context.build_trainer(config)
    accumulate = config.training.accumulate
    groups = chain.from_iterable(micro_batches(trainer.feed(context.train, n), accumulate) for n in count())
    first = next(groups)
    samples = _count_samples(first)
    # The last step of an epoch may have fewer samples.
    full = chain([first], (group for group in groups if _count_samples(group) == samples))
    steps = full if loads else cycle([*islice(full, BATCHES)])
    backend = get_backend(config.backend)
    device = context.world.device
    identity = RunIdentity.of_run(
        config.to_dict(), context.describe_environment(trainer), context.describe_data()
    )
    # The data are in the fingerprint, as those of the original config.
    settings = {
        key: value_text(value)
        for key, value in identity.select(BENCHMARK.roles - {Role.DATA}).items()
        if not is_recorded_fact(key)
    }
    if not config.model.kwargs:
        settings["model.kwargs"] = "{}"
    settings["backend"] = backend.label
    return Training(
        step=lambda: trainer.step(next(steps)).compiled,
        samples=samples,
        device=device,
        dtype=backend.dtype,
        session=trainer.precision.training_context(),
        is_captured=uses_cuda_graph(config.execution),
        settings=settings,
        unit=IMAGES if context.data.train.unit == IMAGES else "samples",
        preparation=_preparation(config, device),
        fingerprint=_fingerprint(original, config, identity),
        backend_source=backend.source or None,
        train_samples=context.data.train.size if config.data.source == original.data.source else None,
    )


def _preparation(config: Config, device: torch.device) -> list[str]:
    steps = {
        "compiling": uses_compile(config.execution),
        "choosing cuDNN algorithms": is_cuda(device) and config.cudnn_benchmark and not config.deterministic,
        "capturing a CUDA graph": uses_cuda_graph(config.execution),
    }
    return [name for name, is_needed in steps.items() if is_needed]


def _fingerprint(original: Config, config: Config, identity: RunIdentity) -> dict[str, Any]:
    """Return model, data, and the hashes of code and data that a run of the original config records.

    Where synthetic images replace a built-in data set, nothing is known about its content.

    Args:
        original: The options of the command line.
        config: The options of the benchmark.
        identity: The identity of the benchmark's training.
    """
    of_data = ("data_source", "data_fingerprint", "train_data", "test_set")
    fingerprint: dict[str, Any] = dict.fromkeys(("model", "model_source", "data", *of_data))
    fingerprint |= {"model": original.model.name, "data": original.data.source}
    facts = {**identity.select({Role.CODE, Role.DATA}), TRAIN_DATA: identity.facts.get(TRAIN_DATA)}
    for key, value in facts.items():
        name = "test_set" if key == TEST_SET else key.removeprefix(ENVIRONMENT)
        is_known = config.data.source == original.data.source or name not in of_data
        if is_recorded_fact(key) and is_known and name != "backend_source":  # arms differ in the backend
            fingerprint[name] = value
    return fingerprint


def _count_samples(group: Sequence[Any]) -> int:
    """Count the samples of a step: its micro-batches are (inputs, targets), or plans of shape [rows, B]."""
    return sum(count_samples(x[1]) if isinstance(x, tuple) else x.shape[1] for x in group)
