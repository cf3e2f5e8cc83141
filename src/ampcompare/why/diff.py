"""`ampcompare why diff`: where a backend leaves fp32 in a training step, module by module."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import printable, some
from ampcompare.system.device import allow_tf32
from ampcompare.training.run_context import make_config, prepare_run
from ampcompare.why.fp32_reference import Error, beside_twins, compared
from ampcompare.why.step_capture import Call, Step, floats, observe

FEW = 8  # samples of a batch that are looked at
MOST = 15  # modules that are shown
NETWORK, LOSS = "(network)", "the loss"  # the network is called "" by PyTorch
SAME = 1e-3  # of gradients in fp32: those of a weight that its module alone uses
LARGE = (
    20  # times the unit roundoff: of sums that cancel, as in gradients of weights, rounding alone reaches 16
)
SHARE = 1e-4  # of elements, from which it is said
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Line:
    """A module: the type of its output; its `own` errors, of the worst of its `calls` (`call`, from 0), by
    what they are of; those of its output and of the gradient there in the step, against the step in fp32.
    """

    title: str
    kind: str
    calls: int
    type: str
    own: dict[str, Error]
    call: int
    output: Error | None
    gradient: Error | None

    @property
    def size(self) -> float:
        """The largest of its own errors; -1 where none could be measured, as of dropout."""
        return _worst(self.own.values(), -1.0)


@dataclass(frozen=True)
class Difference:
    """The whole answer; `lines` are in the order of the forward."""

    backend: str
    network: str
    data: str
    samples: int
    loss: float
    loss_fp32: float
    scale: float
    skipped: bool
    update: Error
    first_output: str | None  # the first module whose output is not finite, in the order of the forward
    first_gradient: str | None  # and in that of the backward
    lines: list[Line]
    not_called: list[str]
    dtype: str = "float16"  # that of the backend

    def by_worst(self) -> list[Line]:
        """The lines, the largest error of their own first; of those that are not finite the first ones."""
        firsts = {self.first_output, self.first_gradient}
        return sorted(self.lines, key=lambda line: (-line.size, line.title not in firsts))


def difference(words: Sequence[str]) -> Difference:
    """Take a step under the backend of the words and in fp32, and compare them. Raises UserError."""
    config = make_config(words)
    fp32 = make_config(words, backend=PLAIN)
    if get_backend(config.backend).is_strict_fp32:
        raise UserError(
            f"backend={config.backend}: is fp32 here; name one that is not, such as backend=native"
        )
    random = torch.get_rng_state()
    try:
        setting = prepare_run(config)
        allow_tf32(False)  # the fp32 that the backend is compared with is strict
        named = any(word.lstrip("-+").startswith("batch_size=") for word in words)
        (batches,) = setting.first_steps(1, samples=None if named else FEW)
        reference, trainer = setting.build_trainer(fp32), setting.build_trainer(config)
        twins = setting.build_trainer(fp32).model
        truth = observe(reference, batches, config.seed)
        seen = observe(trainer, batches, config.seed)
        lines = _lines(truth, seen, twins)
        called = {call.name for call in seen.calls.values()}
        return Difference(
            get_backend(config.backend).label,
            config.model.name,
            config.data.source,
            sum(count_samples(inputs) for inputs, _ in batches),
            seen.loss,
            truth.loss,
            seen.scale,
            seen.skipped,
            compared(list(seen.updates.values()), list(truth.updates.values())),
            _first_output(truth, seen),
            _first_gradient(seen),
            lines,
            [n for n, m in twins.named_modules() if n not in called and _has_forward(m)],
            get_backend(config.backend).dtype,
        )
    finally:
        torch.set_rng_state(random)


def _lines(truth: Step, seen: Step, model: nn.Module) -> list[Line]:
    twins, twins_fp32 = beside_twins(seen, model), beside_twins(truth, model)
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in seen.calls.values():
        calls[call.name].append(call)
    found = []
    for name, module in model.named_modules():
        if name not in calls:
            continue
        worst = max(calls[name], key=lambda call: _worst(twins.errors[call.key].values(), -1.0))
        own = dict(twins.errors[worst.key])
        # Of a weight that others use, too, the gradient is not that of these calls alone.
        mine = [
            n
            for n, gradient in twins_fp32.gradients.items()
            if n.rpartition(".")[0] == name
            and n in twins.gradients
            and compared([gradient], [truth.gradients[n]], truth.scale).size < SAME
        ]
        if mine:
            ours = [seen.gradients[n].double() * seen.scale for n in mine]
            own["weights' gradients"] = compared(ours, [twins.gradients[n] for n in mine])
        both = [(call, truth.calls[call.key]) for call in calls[name] if call.key in truth.calls]
        outputs = [compared(floats(a.output), floats(b.output)) for a, b in both]
        gradients = [_of_gradients(a, b, seen.scale / truth.scale) for a, b in both if a.output_gradients]
        types = dict.fromkeys(str(t.dtype) for call in calls[name] for t in floats(call.output))
        in_types = ", ".join(types).replace("torch.", "")
        most = [max(errors, key=lambda error: error.size, default=None) for errors in (outputs, gradients)]
        kind = type(module).__name__
        found.append(Line(name or NETWORK, kind, len(calls[name]), in_types, own, worst.number, *most))
    order = {call.name or NETWORK: place for place, call in reversed([*enumerate(seen.calls.values())])}
    return sorted(found, key=lambda line: order[line.title])


def _of_gradients(ours: Call, theirs: Call, scale: float) -> Error:
    places = [i for i in ours.output_gradients if i in theirs.output_gradients]
    one, other = ([call.output_gradients[i] for i in places] for call in (ours, theirs))
    return compared(one, other, scale)


def _worst(errors: Iterable[Error], default: float) -> float:
    return max((error.size for error in errors), default=default)


def _has_forward(module: nn.Module) -> bool:
    """Whether it can be called at all: a ModuleList only holds others."""
    return type(module).forward is not nn.Module.forward


def _first_output(truth: Step, seen: Step) -> str | None:
    for key, call in seen.calls.items():
        if key in truth.calls and math.isinf(
            compared(floats(call.output), floats(truth.calls[key].output)).size
        ):
            return call.name or NETWORK
    return None


def _first_gradient(step: Step) -> str | None:
    """The module in whose backward a gradient became infinite or NaN; the loss, where all are from it on."""
    for call in (call for call in step.backward if not call.inner):
        if not _finite(call.output_gradients.values()):
            return LOSS
        own = [g for name, g in step.gradients.items() if name.rpartition(".")[0] == call.name]
        if not _finite([*own, *call.given_gradients.values()]):
            return call.name or NETWORK
    names = [name for name, g in step.gradients.items() if not _finite([g])]
    return (names[0].rpartition(".")[0] or NETWORK) if names else None


def _finite(found: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in found)  # sync: this waits wherever it looks


def sentences(found: Difference) -> list[str]:
    """What the table does not say by itself, a sentence each."""
    said, lines = [], [line for line in found.by_worst() if line.size > 0]
    if lines:
        first = lines[0]
        of, error = max(first.own.items(), key=lambda pair: pair[1].size)
        where = f"{first.title} (call {first.call + 1} of {first.calls})" if first.calls > 1 else first.title
        if math.isinf(error.size):
            said.append(f"what is not finite arises in {where}: in its {of}")
        else:
            after = f"; next {lines[1].title}, {number(lines[1].size)}" if lines[1:] else ""
            said.append(f"most error arises in {where}: {number(error.size)} of its {of}{after}")
    if lines and math.isfinite(lines[0].size):
        said.append(_large(found))
    if found.first_output:
        said.append(f"the first output that is not finite is that of {found.first_output}")
    if found.first_gradient:
        at = f"at the loss scale of {found.scale:,.6g}"
        said.append(f"the first gradient that is not finite comes from {found.first_gradient}, {at}")
    if found.skipped:
        said.append("the step was skipped, nothing was updated")
    else:
        still = (
            f", {100 * found.update.flushed:.2g} % of the weights stand still and should not"
            if found.update.flushed >= SHARE
            else ""
        )
        off = abs(found.loss - found.loss_fp32)
        said.append(
            f"the loss is off by {number(off)}, the whole update by {number(found.update.size)}{still}"
        )
    flushed = max(
        ((line.gradient.flushed, line.title) for line in found.lines if line.gradient), default=(0.0, "")
    )
    if flushed[0] >= SHARE:
        said.append(f"gradients flushed to zero: most in {flushed[1]}, {100 * flushed[0]:.2g} %")
    if found.not_called:
        said.append(f"not called in this step: {some(found.not_called)}")
    return said


def _large(found: Difference) -> str:
    """Say which modules err by more than the rounding of the backend's dtype explains."""
    unit = torch.finfo(getattr(torch, found.dtype)).eps / 2
    rounding = f"{LARGE} times the rounding of {SHORT.get(found.dtype, found.dtype)} ({number(unit)})"
    large = [line.title for line in found.by_worst() if line.size > LARGE * unit]
    if not large:
        return f"no module's own error is large: none is above {rounding}"
    return f"large, above {rounding}: {some(large)}; the others are rounding"


def number(value: float) -> str:
    """`4.1e-4`, `0` and `inf/nan`.

    >>> number(0.00041)
    '4.1e-4'
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "inf/nan"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if int(power) else digits


def run_diff(
    words: Sequence[str], console: Console, *, every: bool = False, file: Path | None = None
) -> None:
    """Compare, print, and write what was asked for. Raises UserError."""
    found = difference(words)
    lines = found.by_worst()
    print_line(
        console, f"{found.backend} beside fp32: {found.network} on {found.data}, {found.samples} samples"
    )
    table = Table(header_style="dim", box=None)
    for head in ("module", "in", "its own", "output", "gradient"):
        table.add_column(head, justify="left" if head in ("module", "in") else "right", overflow="fold")
    for line in lines if every else lines[:MOST]:
        calls = f" x{line.calls}" if line.calls > 1 else ""
        kinds = ", ".join(SHORT.get(kind, kind) for kind in line.type.split(", "))
        own = "-" if line.size < 0 else number(line.size)
        sizes = ("-" if error is None else number(error.size) for error in (line.output, line.gradient))
        table.add_row(*(Text(printable(cell)) for cell in (f"{line.title}{calls}", kinds, own, *sizes)))
    console.print(table)
    more = f"; {len(lines) - MOST} modules more with --all" if len(lines) > MOST and not every else ""
    print_line(
        console,
        f"relative errors against fp32, by norm; its own: beside a twin in fp32 on the same inputs{more}",
    )
    for sentence in sentences(found):
        print_line(console, f"- {sentence}")
    if file is not None:
        write_json(file, dataclasses.asdict(found))
        print_line(console, f"Written: {file}")
