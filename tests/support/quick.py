"""What tests share as values: where the checkout is, a quick run."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A network with dropout, in place of that of QUICK.
DROPOUT = f"model.name={ROOT / 'tests' / 'support' / 'dropout.py'}:build"

# A small but complete run: a network of 5 k parameters on synthetic data, in seconds on a CPU.
QUICK = (
    "model.name=tiny",
    "data.source=synthetic",
    "data.train_limit=32",
    "data.test_limit=16",
    "batch_size=8",
    "epochs=2",
    "log.every=2",
    "log.warmup_steps=2",
    "diagnostics.every=2",
    "device=cpu",
    "wandb.mode=offline",
)
ONLINE = (*(word for word in QUICK if not word.startswith("wandb.")), "wandb.mode=online")
