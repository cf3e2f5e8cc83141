"""Buffers that an overflowing forward left non-finite: counted, and put back where that is wanted.

A step that overflows in its forward is skipped, but the forward has updated BatchNorm's running statistics
before anybody knew: inf or nan in them stays for good, whatever comes after, and is in every evaluation
(pytorch 90342, 115500). Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ampcompare.machine.device import is_host
from ampcompare.train.errors import TrainingError

# Those of which torch knows whether they are finite.
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


Kind = tuple[torch.dtype, torch.Size]


@dataclass(frozen=True)
class Kept:
    """Copies of a model's buffers: what each was, and all of one type in one flat tensor."""

    kinds: list[Kind]
    flat: list[Tensor]


class Buffers:
    """The floating buffers of a model. With `restores`, a step keeps a copy of them until it is over."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, device: torch.device, *, restores: bool) -> None:
        # Looked up at each use: a module may put another tensor in the place of one.
        found = [(n, m, key, b) for n, m in model.named_modules() for key, b in m._buffers.items()]
        self._places = [(module, key, b.dtype) for _, module, key, b in found if _is_floating(b)]
        self._names = [f"{name}.{key}".lstrip(".") for name, _, key, b in found if _is_floating(b)]
        self.restores = restores and bool(self._places)
        self._restored = torch.zeros((), dtype=torch.int64, device=device)
        # In the place of one that a module has taken away, or given another type: order by type stays.
        types = {kind for *_, kind in self._places}
        self._absent = {kind: torch.zeros(1, dtype=kind, device=device) for kind in types}
        # A mask of -inf is not. In the order of `_by_type`, as all answers of `_are_finite`.
        self._finite_at_first = _are_finite(self._buffers()) if self._places else torch.ones(0).bool()
        self._finite = self._finite_at_first.clone()  # behind the last step, where they are put back

    @torch.no_grad()
    def count(self, skipped_steps: Tensor) -> Tensor:
        """Buffers that skipped steps left non-finite so far, 0-d: none as long as no step was skipped.

        Those that are so now; where they are put back, each as often as it was.
        """
        no_skip = is_host(skipped_steps.device) and not skipped_steps
        if self.restores or not self._places or no_skip:
            return self._restored
        return self._bad(self._buffers()) * (skipped_steps > 0)

    @torch.no_grad()
    def keep(self) -> Kept:
        """Copies of all that a step may spoil. Before the step's forward."""
        buffers = self._buffers()
        return Kept(_kinds(buffers), [_flat(alike) for alike in _by_type(buffers)])

    @torch.no_grad()
    def put_back(self, kept: Kept, skipped: Tensor) -> None:
        """Behind a step: give all buffers the values `kept`, if it was `skipped` (0-d) and spoiled any.

        All of them, so that they are of one time. What a forward left finite stays although the step was
        skipped; one that was not finite before it is none of its doing. One launch for every few dozen
        buffers; decided on the device, so that a graph can hold it.

        Raises TrainingError where the step changed a buffer's type or shape: its copy no longer fits.
        """
        buffers = self._buffers()
        if (kinds := _kinds(buffers)) != kept.kinds:
            raise TrainingError(self._changed(kept.kinds, kinds))
        finite = _are_finite(buffers)
        bad = (self._finite > finite).sum() * skipped
        spoiled = bad > 0
        for before, alike in zip(kept.flat, _by_type(buffers), strict=True):
            chosen = torch.where(spoiled, before, _flat(alike)).split([b.numel() for b in alike])
            torch._foreach_copy_(alike, [x.view(b.shape) for x, b in zip(chosen, alike, strict=True)])
        self._restored += bad
        torch.where(spoiled, self._finite, finite, out=self._finite)

    def _buffers(self) -> list[Tensor]:
        found = ((module._buffers.get(key), kind) for module, key, kind in self._places)
        return [b if _is_floating(b) and b.dtype is kind else self._absent[kind] for b, kind in found]

    def _changed(self, before: list[Kind], after: list[Kind]) -> str:
        kinds = zip(self._names, before, after, strict=True)
        name = next(name for name, was, now in kinds if was != now)
        return (
            f"a step changed the type or the shape of the buffer {name}, so it cannot be put back; "
            "try training.on_nonfinite_buffers=say"
        )

    def _bad(self, buffers: Sequence[Tensor]) -> Tensor:
        """How many are not finite and once were, 0-d."""
        return (self._finite_at_first > _are_finite(buffers)).sum()

    def state_dict(self) -> dict[str, int]:
        """What was put back so far. Waits for the device."""
        return {"restored": int(self._restored)}  # sync: a checkpoint needs the number

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._restored.fill_(state["restored"])
        if self.restores:
            self._finite.copy_(_are_finite(self._buffers()))  # the model has been loaded before


ADVICE = "Try training.on_nonfinite_buffers=restore"


class BufferWatch:
    """Says once that buffers became non-finite. `found_at` is the very step, or None where none is known."""

    def __init__(self, *, restores: bool, advice: str = ADVICE) -> None:
        self._restores, self._advice = restores, advice
        self._said = False
        self.found_at: int | None = None

    def check(self, step: int, count: int, *, is_exact: bool) -> str | None:
        """Check the `count` of such buffers so far, at a step: the very one, or one by which it happened."""
        if self._said or not count:
            return None
        self._said, self.found_at = True, step if is_exact else None
        what = f"{'' if is_exact else 'by '}step {step}: {count} of the model's buffers"
        if self._restores:
            how = "of a forward that overflowed were put back to those from before the step"
            return f"{what} {how} (training.on_nonfinite_buffers=restore)"
        return (
            f"{what} (BatchNorm's running statistics) are no longer finite, as a forward overflowed: to skip "
            f"a step does not mend them, and every evaluation from here on uses them. {self._advice}"
        )

    def state_dict(self) -> dict[str, int | None]:
        return {"said": self._said, "found_at": self.found_at}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        self.found_at = state["found_at"]
        self._said = bool(state.get("said", self.found_at is not None))


def _is_floating(buffer: Tensor | None) -> TypeGuard[Tensor]:
    return (
        buffer is not None
        and buffer.dtype in FLOATING
        and buffer.layout is torch.strided
        and buffer.numel() > 0
        and not any(size > 1 and step == 0 for size, step in zip(buffer.shape, buffer.stride(), strict=True))
    )


def _by_type(buffers: Sequence[Tensor]) -> list[list[Tensor]]:
    return [alike for kind in FLOATING if (alike := [b for b in buffers if b.dtype is kind])]


def _are_finite(buffers: Sequence[Tensor]) -> Tensor:
    """Of each buffer whether all of it, and so its largest magnitude, is finite. Bool [buffers]."""
    found = [torch.stack(torch._foreach_norm(alike, torch.inf)) < torch.inf for alike in _by_type(buffers)]
    return torch.cat(found) if len(found) > 1 else found[0]


def _kinds(buffers: Sequence[Tensor]) -> list[Kind]:
    return [(b.dtype, b.shape) for b in buffers]


def _flat(buffers: Sequence[Tensor]) -> Tensor:
    return torch.cat([b.flatten() for b in buffers])
