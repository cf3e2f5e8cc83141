"""A training by Lightning, under either of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

HOW: dict[str, Any] = {"every": 5, "warmup_steps": 4, "diagnostics": 4, "quiet": True}


def data() -> TensorDataset:
    torch.manual_seed(0)
    x = torch.randn(120, 6)
    return TensorDataset(x, (x.sum(1) > 0).long())


def lightning_module(library: Any) -> Any:
    class Net(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
            self.head = torch.nn.Linear(8, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return torch.nn.functional.cross_entropy(self.head(self.body(batch[0])), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            out = self.head(self.body(batch[0]))
            self.log("val_loss", torch.nn.functional.cross_entropy(out, batch[1]))
            self.log("val_acc", (out.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Net()


def fit(library: Any, folder: Path, seed: int, **how: Any) -> Any:
    from ampcompare.recorder.lightning import RecorderCallback

    library.seed_everything(seed, verbose=False)
    trainer = library.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[RecorderCallback(output_dir=folder, **HOW)],
        **how,
    )
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    trainer.fit(lightning_module(library), loader, DataLoader(data(), batch_size=40))
    return trainer
