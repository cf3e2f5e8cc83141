"""A whole training on fake CUDA tensors, on the device `cuda:0` that is not there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampcompare.config.load import load_config
from ampcompare.data.factory import build_dataset
from ampcompare.system.device import resolve_device, set_numerics
from ampcompare.training.factory import allows_tf32
from ampcompare.training.loop import TrainingLoop
from support.rehearsal.fake_cuda import FakeCuda
from support.rehearsal.walk import walking
from support.rehearsal.watch import Contact, Watch
from support.training import fit_of

# Short last batches, and enough full ones for warm-up, capture and launches of a graph, in training and
# evaluation.
WORDS = (
    "device=cuda",
    "data.source=synthetic",
    "data.train_limit=116",
    "data.test_limit=70",
    "batch_size=32",
    "eval.batch_size=16",
    "epochs=2",
    "log.every=2",
    "log.warmup_steps=2",
)


class Rehearsed(NamedTuple):
    """What a rehearsed training loop came to."""

    contacts: list[Contact]  # of `TrainingLoop.run` alone, in order
    captures: int  # of graphs
    launches: int  # of graphs
    rows: list[dict[str, Any]]


class _NoDevice(FakeTensorMode):
    """A fake mode that knows that there is no device, although `torch.cuda.is_available()` says so."""

    avoid_device_init = True


@contextmanager
def stage() -> Iterator[tuple[Watch, FakeCuda]]:
    """Fake CUDA tensors, watched, with autograd's walk. What is inside believes in a GPU."""
    fakes = _NoDevice(allow_fallback_kernels=False)
    watch = Watch(fakes)
    cuda = FakeCuda(watch)
    hook = register_optimizer_step_pre_hook(watch.note_rate)
    try:
        with fakes, cuda.installed(), walking(), watch:
            yield watch, cuda
    finally:
        hook.remove()


def rehearse(words: Sequence[str], prepare: Callable[[TrainingLoop], None] = lambda fit: None) -> Rehearsed:
    """Run a training loop of the config of WORDS and `words`; `prepare` may change it before it runs.

    Raises RehearsalError for what a capture does not allow.
    """
    config = load_config(None, [*WORDS, *words])
    data = build_dataset(config.data.source, None, config.data.train_limit, config.data.test_limit)
    with stage() as (watch, cuda):
        device = resolve_device(config.device)
        how = {key: config.value(key) for key in ("cudnn_benchmark", "deterministic")}
        set_numerics(tf32=allows_tf32(config), **how)
        fit, rows = fit_of(config, device, data)
        prepare(fit)
        watch.contacts.clear()
        fit.run()
    return Rehearsed(watch.contacts, cuda.captures, cuda.launches, rows)
