"""Which weights lose their update: they stay as they are in 16 bits, although they change in fp32."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.errors import UserError
from ampcompare.why.capture import TakenStep, are_finite
from ampcompare.why.errors import unit_roundoff
from ampcompare.why.step import RepeatableStep, StepState

DRAWS = 20  # of a backend that rounds at random
ROUNDED_STEPS = "rounded_steps"  # in the state of a backend that rounds at random
NORMS, BIASES, EMBEDDINGS, OTHERS = "norms", "biases", "embeddings", "others"
WORTH_KEEPING = 0.5  # modules of which a larger fraction of the weights loses its update are tried in fp32
Updates = Mapping[str, Tensor]  # by parameter


class DrawnUpdates:
    """The updates of a step in several draws of random rounding, of which only sums are kept.

    Attributes:
        expected: The updates in fp32.
        floor: The root mean square below which updates are rounding errors.
        draws: The number of draws.
        lost: The numbers of lost weights by parameter, added up over the draws.
        sums: The sums of the updates over the draws, by parameter.
    """

    def __init__(self, expected: Updates, unit: float) -> None:
        self.expected = expected
        weights = sum(each.numel() for each in expected.values())
        square = sum(float(each.abs().square().sum()) for each in expected.values())
        self.floor = unit * (square / weights) ** 0.5 if weights else 0.0
        self.draws = 0
        self.lost = dict.fromkeys(expected, 0)
        self.sums: dict[str, Tensor] = {}

    def add(self, updates: Updates) -> None:
        """Add the updates of a draw."""
        self.draws += 1
        for name, fp32 in self.expected.items():
            own = updates[name]
            self.lost[name] += int(((own == 0) & (fp32 != 0)).sum())
            self.sums[name] = self.sums[name] + own if name in self.sums else own


@dataclass(frozen=True)
class UpdateLoss:
    """How much of an update is lost.

    Attributes:
        name: The parameter, the kind of parameter, or the option that was tried.
        kind: The kind of parameter: NORMS, EMBEDDINGS, BIASES or OTHERS; "" for an option.
        weights: Number of weights.
        lost: Fraction of the weights that did not change, although they change in fp32.
        arrives: How much of the update arrives: its projection on the update in fp32, 1 for all of it. nan
            where that is less than the rounding of all updates.
        draws: Over how many draws of random rounding both are averaged; 1 for a backend without.
    """

    name: str
    kind: str
    weights: int
    lost: float
    arrives: float
    draws: int


@dataclass(frozen=True)
class LostUpdates:
    """The lost updates of a step.

    Attributes:
        parameters: A row for each parameter, the largest fraction first.
        kinds: The sums by kind of parameter, the largest fraction first.
        remedies: All parameters in the same step with another option.
    """

    parameters: list[UpdateLoss]
    kinds: list[UpdateLoss]
    remedies: list[UpdateLoss]


def measure_lost_updates(
    state: StepState, step: TakenStep, reference: TakenStep, model: nn.Module
) -> LostUpdates | None:
    """Return the lost updates of a step, and what helps; None where none is lost.

    Args:
        step: The step under a backend that updates 16-bit weights.
        reference: The step in fp32.
        model: The network, for the kinds of parameters.
    """
    if step.skipped or not are_finite(step.updates):
        return None
    drawn = _draw_updates(state, state.config, reference.updates)
    kinds = {name: _kind_of(model, name) for name in reference.updates}
    rows = [_measure(name, kind, drawn, [name]) for name, kind in kinds.items()]
    rows.sort(key=lambda row: -row.lost)
    if not rows or not rows[0].lost:
        return None
    sums = [
        _measure(kind, kind, drawn, [name for name in kinds if kinds[name] == kind])
        for kind in dict.fromkeys(kinds.values())
    ]
    sums.sort(key=lambda row: -row.lost)
    remedies = []
    for option, config in _list_remedies(state.config, rows, sums[0].kind):
        try:
            tried = _draw_updates(state, config, reference.updates)
        except (UserError, RuntimeError):  # the network does not run with other modules in fp32
            continue
        remedies.append(_measure(option, "", tried, [*kinds]))
    return LostUpdates(rows, sums, remedies)


def _measure(name: str, kind: str, drawn: DrawnUpdates, parameters: Sequence[str]) -> UpdateLoss:
    """Return the lost updates of some parameters together."""
    fp32 = [drawn.expected[n].flatten() for n in parameters]
    own = [drawn.sums[n].flatten() for n in parameters]
    weights = sum(len(each) for each in fp32)
    lost = sum(drawn.lost[n] for n in parameters) / (weights * drawn.draws) if weights else 0.0
    whole = sum(float(torch.vdot(each, each).real) for each in fp32)
    arrived = sum(float(torch.vdot(a, b).real) for a, b in zip(fp32, own, strict=True)) / drawn.draws
    arrives = arrived / whole if whole else 1.0
    if whole < weights * drawn.floor**2:
        arrives = math.nan
    return UpdateLoss(name, kind, weights, lost, arrives, drawn.draws)


def _kind_of(model: nn.Module, parameter: str) -> str:
    owner, _, name = parameter.rpartition(".")
    module = model.get_submodule(owner)
    if "norm" in type(module).__name__.lower():
        return NORMS
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return EMBEDDINGS
    return BIASES if name.startswith("bias") or name.endswith("bias") else OTHERS


def _list_remedies(config: Config, rows: Sequence[UpdateLoss], kind: str) -> list[tuple[str, Config]]:
    """Return options that may help: the modules that lose most in fp32, and stochastic rounding.

    Args:
        kind: The kind of parameter that loses most.
    """
    remedies = []
    lossy = [row.name for row in rows if row.kind == kind and row.lost >= WORTH_KEEPING]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in lossy)
    if modules and "" not in modules:  # a parameter of the network itself has no module to keep
        kept = [*(config.precision.keep_fp32 or ()), *modules]
        precision = dataclasses.replace(config.precision, keep_fp32=kept)
        option = f"precision.keep_fp32={','.join(kept)}"
        remedies.append((option, dataclasses.replace(config, precision=precision)))
    if config.backend == "bf16":
        remedies.append(("backend=bf16_sr", dataclasses.replace(config, backend="bf16_sr")))
    return remedies


def _draw_updates(state: StepState, config: Config, expected: Updates) -> DrawnUpdates:
    """Return the updates of the step under other options, DRAWS times where they are rounded at random.

    Args:
        expected: The updates in fp32.
    """
    step = RepeatableStep(state, state.build_trainer(config), state.batches)
    drawn = DrawnUpdates(expected, unit_roundoff(config.backend))
    own = step.start["precision"]
    first = own.get(ROUNDED_STEPS)
    for number in range(1 if first is None else DRAWS):
        if first is not None:
            own[ROUNDED_STEPS] = first + number
        drawn.add(step.take().updates)
    return drawn
