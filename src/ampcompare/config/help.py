"""What `--help` says of the options: those that people set, or all. Free of torch."""

from __future__ import annotations

import json

from ampcompare.config.options import Leaf
from ampcompare.config.schema import LEAVES

USAGE = "usage: {program} [--config NAME_OR_PATH] [key=value | --key=value | --flag ...]"
ALL = """
Trains one run. --config names a file of configs/ or a path (default: reference); words override its values.
A text may hold another option: wandb.group=strong-${backend}. ??? in a file is for a word to give.
The options, each with its default, meaning and what it may be:
"""
# Those that people set, in the order in which they are asked for; some in fewer words.
OFTEN = {
    "what": ("backend", "model.name", "execution", "device"),
    "data": ("data.source", "data.root", "data.train_limit"),
    "training": (
        *("epochs", "max_steps", "batch_size", "seed"),
        *("optimizer.name", "optimizer.lr", "training.accumulate", "training.clip_norm"),
    ),
    "precision": ("precision.loss_scale", "precision.keep_fp32"),
    "record": ("output_dir", "resume", "wandb.mode", "wandb.project"),
}
BRIEFLY = {
    "model.name": "network, also timm:NAME, torchvision:NAME, ./net.py:build",
    "data.source": "cifar10, cifar100, image_folder, synthetic, ./data.py:build",
    "data.root": "folder of the data",
    "precision.keep_fp32": "modules that compute in fp32: layer4.2,*.bn3,fc",
    "resume": "auto: go on with an unfinished run of this config, or never",
}


def often(program: str) -> str:
    """A line for each option that people set."""
    lines = [
        USAGE.format(program=program),
        "Trains one run. --help-all: every option, with what it may be.\n",
    ]
    for group, options in OFTEN.items():
        for number, key in enumerate(options):
            leaf = LEAVES[key]
            words = ", ".join(leaf.meta["choices"]) if leaf.base is str else ""
            said = BRIEFLY.get(key) or words or leaf.meta["help"]
            lines.append(f"{'' if number else group:<11}{_with_default(leaf):<30}{said}")
    return "\n".join(lines)


def every(program: str) -> str:
    """Every option with meaning, default and allowed values, one block each."""
    lines = [USAGE.format(program=program), ALL.rstrip("\n")]
    for leaf in LEAVES.values():
        lines += [f"  {_with_default(leaf)}", f"      {leaf.meta['help']} ({leaf.allowed})"]
    return "\n".join(lines)


def _with_default(leaf: Leaf) -> str:
    said = json.dumps(leaf.default) if isinstance(leaf.default, bool | None) else leaf.default
    return f"{leaf.key}={said}"
