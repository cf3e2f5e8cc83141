"""The step that `why diff` looks at: its micro-batches, and how to build a trainer in the state before it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch
from ampcompare.system.device import seed_process
from ampcompare.training.run_context import make_config, prepare_run
from ampcompare.training.trainer import Trainer
from ampcompare.why.replay import Moment

SAMPLES = 8  # of the batch, unless the options set batch_size


@dataclass
class StepSource:
    """A step before it is taken.

    Attributes:
        config: The options of the run.
        name: What is looked at, for headings.
        batches: The micro-batches.
        build_trainer: Returns a trainer in the state before the step, under other options.
        set_random_states: Sets the random generators as they are before the step.
    """

    config: Config
    name: str
    device: torch.device
    batches: list[Batch]
    build_trainer: Callable[[Config], Trainer]
    set_random_states: Callable[[], None]


def read_source(overrides: Sequence[str], moment: Moment | None) -> StepSource:
    """Return the step that the options or the moment name.

    Args:
        overrides: Options of a run. Unused with a moment.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options.
    """
    if moment is not None:
        return StepSource(
            config=moment.config,
            name=moment.name,
            device=moment.context.world.device,
            batches=moment.batches,
            build_trainer=moment.build_trainer,
            set_random_states=moment.set_random_states,
        )
    context = prepare_run(make_config(overrides))
    has_batch_size = any(word.lstrip("-+").startswith("batch_size=") for word in overrides)
    (batches,) = context.first_steps(1, samples=None if has_batch_size else SAMPLES)
    return StepSource(
        config=context.config,
        name="one training step",
        device=context.world.device,
        batches=batches,
        build_trainer=context.build_trainer,
        set_random_states=partial(seed_process, context.config.seed),
    )
