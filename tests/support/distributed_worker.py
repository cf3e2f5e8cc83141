"""What tests of two processes start with torchrun: a short training per backend, rows as JSON per process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.machine.world import join
from ampcompare.program.stopping import leave
from ampcompare.train import build
from ampcompare.train.loaders import make_loader
from ampcompare.train.loop import Fit

WORDS = (
    "data.source=synthetic",
    # the last batch of an epoch is short and of an odd size: 32, 32, 26; and 13 for each
    "data.train_limit=90",
    "data.test_limit=33",
    "batch_size=32",
    "eval.batch_size=8",  # the last evaluation batch has one image: none for the second process
    "epochs=2",
    "log.every=1",
    "device=cpu",
    "optimizer.momentum=0.9",
)
CASES = {
    **{
        name: (f"backend={name}", "precision.init_scale=1024")
        for name in ("none", "apex_o1", "apex_o2", "bf16_sr")
    },
    "accumulated": (
        "backend=native",
        "training.accumulate=2",
        "precision.init_scale=1024",
        "training.clip_norm=0.5",
    ),
    # Overflows at first, in the images of one process alone.
    **{
        f"{name} overflow": (f"backend={name}", "precision.init_scale=16777216")
        for name in ("native", "apex_o1")
    },
    "not finite": ("backend=none", "optimizer.lr=1e30", "training.on_nan=continue"),
}


def without_batch_norm(*_: object, **__: object) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    build.build_model = without_batch_norm
    found = {}
    with join("cpu") as world:
        for case, words in CASES.items():
            config = load_config(None, [*WORDS, *words])
            data = build_dataset(source="synthetic", root=None, train_limit=90, test_limit=33)
            cpu = torch.device("cpu")
            train, test = (
                make_loader(config, part, cpu, training=part is data.train, world=world)
                for part in (data.train, data.test)
            )
            trainer = build.build_trainer(config, data, train, cpu, world)
            rows: list[dict] = []
            fit = Fit(trainer, train, test, config, on_row=rows.append, world=world)
            fit.run()
            weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
            seen = [plan[0].tolist() for plan in train.plans(0)]
            found[case] = {
                "rows": rows,
                "weights": weights.double().sum().item(),
                "seen": seen,
                "labels": data.test.labels.tolist(),
            }
    (folder / f"rank{world.rank}.json").write_text(
        json.dumps(found, default=lambda histogram: histogram.counts)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
