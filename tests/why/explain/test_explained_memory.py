"""Memory without data is memory with data, and known figures come out."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from ampcompare.why.explain.memory import MIB, take_memory
from ampcompare.why.explain.setting import real, settled, shapes_of
from ampcompare.why.explain.trace import trace_step
from ampcompare.why.ready import configured

CPU = torch.device("cpu")
TINY = ["model.name=tiny", "data.source=synthetic", "batch_size=8", "optimizer.momentum=0.9", "device=cpu"]
IMAGENET = [
    "data.source=synthetic",
    "data.kwargs.size=224",
    "model.stem=imagenet",
    "batch_size=64",
    "device=cpu",
]


def trained(words, backend):
    config = settled(configured(words, backend=backend))
    return real(config, shapes_of(config), CPU)


def saved_bytes(trainer, batches):
    """What the backward is left with, counted by PyTorch's own hooks: each storage once, weights apart."""
    known = {t.untyped_storage().data_ptr() for t in (*trainer.model.parameters(), *trainer.model.buffers())}
    known |= {tensor.untyped_storage().data_ptr() for batch in batches for tensor in batch}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with trainer.precision.forward_context(), saved_tensors_hooks(pack, lambda tensor: tensor):
        _kept = trainer.forward(*batches[0])
    return sum(found.values())


@pytest.mark.parametrize("backend", ["none", "native_bf16", "apex_o1", "apex_o2", "bf16"])
def test_activations_are_what_autograd_really_saves_within_five_percent(trace_of, backend):
    trainer, batches = trained(TINY, backend)
    with trainer.precision.session():
        counted = saved_bytes(trainer, batches)
    assert take_memory(trace_of(TINY, backend)).activations == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("backend", ["none", "native_bf16", "apex_o2"])
def test_the_same_is_held_with_data_as_without(trace_of, backend):
    trainer, batches = trained(TINY, backend)
    with trainer.precision.session():
        with_data = take_memory(trace_step(trainer, batches, CPU))
    without = take_memory(trace_of(TINY, backend))
    # Without data PyTorch takes a half BatchNorm's saved statistics for half: here 192 bytes.
    for name in ("weights", "masters", "gradients", "states", "batch", "workspace", "copies"):
        assert getattr(without, name) == getattr(with_data, name)
    assert without.activations == pytest.approx(with_data.activations, rel=0.001)
    assert without.peak == pytest.approx(with_data.peak, rel=0.001)


@pytest.mark.slow
def test_resnet50_holds_what_it_is_known_to_hold(trace_of):
    base, native = (take_memory(trace_of(IMAGENET, backend)) for backend in ("none", "native"))
    assert base.activations / MIB == pytest.approx(5207, abs=1)
    assert native.activations / MIB == pytest.approx(2715, abs=1)
    assert (base.weights, base.states) == (native.weights, native.states)


def test_a_tied_weight_is_counted_once(trace_of, own_words):
    memory = take_memory(trace_of(own_words, "none"))
    numbers = 50 * 32 + 33 * 32 + 9 * 8 + 51 * 10
    assert memory.weights == 4 * numbers


def test_o2_has_masters_and_half_weights(trace_of):
    base, o2 = (take_memory(trace_of(TINY, backend)) for backend in ("none", "apex_o2"))
    assert o2.weights < base.weights < o2.weights + o2.masters
