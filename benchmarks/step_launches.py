"""Count what a captured training step launches and moves under each backend, into
benchmarks/results/step_launches.*.

    python benchmarks/step_launches.py

Counted on fake CUDA tensors: needs no GPU and takes about a minute. A test compares the files with what the
code gives: whoever changes the launches of a step runs this, and the change is in the diff.

An op counts as one launch, whether its kernel is one or several: a convolution's backward is two or more, an
op on lists of tensors one for every few dozen of them. Views, and memory that nothing is written to, count as
none. Bytes are what `ampcompare.measure.traffic` calls eager: each op reads inputs and writes outputs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampcompare.measure.traffic import Op
from ampcompare.precision import REGISTRY

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.rehearsal.stage import rehearse

OUT = Path(__file__).resolve().parent / "results"
MODELS = ("resnet50", "tiny")
BATCH_SIZE = 128

# As it runs on a GPU by default, whatever the default is where this runs: one capture, after three steps.
WORDS = (
    "execution=cuda_graph",
    "memory_format=channels_last",
    f"batch_size={BATCH_SIZE}",
    f"data.train_limit={4 * BATCH_SIZE}",
    "data.test_limit=16",
    "max_steps=4",
    "epochs=1",
    "log.every=4",
    "optimizer.momentum=0.9",
)

# Groups of ops, by how their names begin; the first that fits.
GROUPS = {
    "convolution": ("convolution",),
    "batch norm": ("cudnn_batch_norm", "native_batch_norm"),
    "activation": ("relu", "threshold"),
    "cast or copy": ("_to_copy", "copy_", "clone", "_foreach_copy"),
    "counters": ("_foreach_add",),
    "optimizer and scale": ("_fused", "_amp", "_foreach"),
}
OTHERS = "rest"
RESTORED = "native, buffers restored"  # with training.on_nonfinite_buffers=restore


def step_ops(*words: str) -> list[Op]:
    """The ops of the step that a training captures, in order."""
    (ops,) = rehearse([*WORDS, *words]).captures
    return ops


def summarize(ops: Sequence[Op]) -> dict[str, Any]:
    """Launches and MB of a step, and the launches of each of GROUPS."""
    groups = Counter(group_of(op.name) for op in ops)
    megabytes = sum(op.sizes[0] for op in ops) / 1e6
    return {
        "launches": len(ops),
        "megabytes": round(megabytes, 1),
        "launches_by_group": {name: groups[name] for name in (*GROUPS, OTHERS)},
    }


def group_of(name: str) -> str:
    return next((group for group, starts in GROUPS.items() if name.startswith(starts)), OTHERS)


def count_steps(model: str) -> dict[str, dict[str, Any]]:
    """The summary of each backend's step by its name, and of RESTORED."""
    words: dict[str, tuple[str, ...]] = {name: (f"backend={name}",) for name in REGISTRY}
    words[RESTORED] = ("backend=native", "training.on_nonfinite_buffers=restore")
    return {name: summarize(step_ops(f"model.name={model}", *how)) for name, how in words.items()}


def as_markdown(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A table for each model."""
    lines = [
        "# What a captured training step launches and moves",
        "",
        f"Batch {BATCH_SIZE}, channels_last, SGD with momentum; counted on fake CUDA tensors, no GPU was "
        "used: `python benchmarks/step_launches.py`. An op counts as one launch, one on many tensors "
        "too. MB: each op reads its inputs and writes its outputs once (batch norms read theirs twice). "
        "`restored`: with `training.on_nonfinite_buffers=restore`.",
    ]
    for model, backends in found.items():
        names = [*GROUPS, OTHERS]
        lines += ["", f"## {model}", "", f"| backend | launches | MB | {' | '.join(names)} |"]
        lines.append("|---|" + "---:|" * (len(names) + 2))
        for backend, row in backends.items():
            groups = " | ".join(str(row["launches_by_group"][name]) for name in names)
            lines.append(f"| {backend} | {row['launches']} | {row['megabytes']:,.1f} | {groups} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found = {model: count_steps(model) for model in MODELS}
    (OUT / "step_launches.json").write_text(json.dumps(found, indent=1) + "\n")
    text = as_markdown(found)
    (OUT / "step_launches.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
