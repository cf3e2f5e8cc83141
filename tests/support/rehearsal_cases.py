"""What is rehearsed: trainings under every registered backend, eager and captured."""

from __future__ import annotations

import pytest

from ampcompare.precision import REGISTRY

# What `make test` leaves to `make test-rest`; `make rehearse` has all.
BIG = pytest.mark.rest

GRAPH = "execution=cuda_graph"
LOOKS = "diagnostics.every=3"
KEPT = "precision.keep_fp32=1,3"

# Each with every backend. A captured run has eager steps too: the first three, the short ones, the looks.
WAYS: dict[str, tuple[str, ...]] = {
    "eager": (LOOKS, "training.clip_norm=1", "training.clip_value=1"),
    "accumulate": ("training.accumulate=2", LOOKS, "training.clip_norm=1"),
    "penalty": ("training.gradient_penalty=0.1", "training.accumulate=2", "epochs=1"),
    "channels_last": ("memory_format=channels_last", LOOKS),
    "graph": (GRAPH, "optimizer.momentum=0.9", LOOKS),
    "graph_contiguous": (GRAPH, "memory_format=contiguous"),
    "graph_clip": (GRAPH, "memory_format=channels_last", "training.clip_norm=1", "training.clip_value=1"),
    "graph_adamw": (GRAPH, "optimizer.name=adamw", "training.label_smoothing=0.1"),
    "graph_static_scale": (GRAPH, "precision.loss_scale=128", "eval.autocast=true"),
    "graph_scale_one": (GRAPH, "precision.loss_scale=1"),
    "fuse": ("fuse=true", LOOKS, "training.clip_norm=1", "training.accumulate=2"),
    "fuse_penalty": ("fuse=true", "training.gradient_penalty=0.1", "epochs=1"),
    "graph_fuse": ("fuse=true", GRAPH, "optimizer.momentum=0.9", "eval.tf32=true"),
}
SOME = ("eager", "graph", "graph_fuse")  # with the tiny one in `make test`
FEW = ("eager", "graph", "graph_clip", "graph_fuse")  # with the real networks


def cases(*ways: str) -> list[tuple[str, ...]]:
    """The words of each backend in each way; then of each of its other types, captured."""
    found = [(f"backend={name}", *_taken(name, WAYS[way])) for name in REGISTRY for way in ways]
    typed = {name: backend.dtypes[1:] for name, backend in REGISTRY.items() if not backend.is_fp32}
    others = [(name, dtype) for name, dtypes in typed.items() for dtype in dtypes]
    found += [(f"backend={name}", f"precision.dtype={dtype}", *WAYS["graph_fuse"]) for name, dtype in others]
    half = [name for name, backend in REGISTRY.items() if backend.half_weights]
    kept = [f"precision.keep_batchnorm_fp32={value}" for value in ("true", "false")]
    return found + [(f"backend={name}", keep, *WAYS["graph_clip"]) for name in half for keep in kept]


def _taken(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without a loss scale, where the backend refuses one."""
    backend = REGISTRY[name]
    if backend.scales or backend.is_fp32:
        return words
    return tuple(word for word in words if not word.startswith("precision.loss_scale"))


def big(model: str) -> list:
    return [pytest.param((f"model.name={model}", *words), marks=BIG) for words in cases(*FEW)]


def tiny() -> list:
    """Every way; in `make test` some of them."""
    found = [("model.name=tiny", *words) for words in cases(*WAYS)]
    some = ("native", "apex_o1", "apex_o2")  # a way of casting each
    found += [("model.name=tiny", f"backend={name}", KEPT, *WAYS["graph_fuse"]) for name in some]
    few = {("model.name=tiny", *words) for words in cases(*SOME)}
    return [words if words in few else pytest.param(words, marks=BIG) for words in found]


TINY = tiny()
ALL = [*TINY, *big("resnet18"), *big("resnet50")]


def name_of(words: tuple[str, ...]) -> str:
    """A test's id."""
    model, backend, *others = (word.rpartition("=")[2] for word in words)
    keys = (word.partition("=")[0].rpartition(".")[2] for word in words[2:])
    return " ".join([model, backend, *(f"{key}={value}" for key, value in zip(keys, others, strict=True))])
