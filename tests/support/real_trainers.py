"""Small trainings by other people's own trainers, recorded with W&B offline, without a line of ours.

`python real_trainers.py FOLDER NAME ...` trains in both precisions with two seeds each, into FOLDER/NAME.
"""

import os
import sys
from pathlib import Path

import torch
import wandb

KINDS = [(seed, is_mixed) for seed in (1, 2) for is_mixed in (False, True)]


def points(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Points of four classes that a small network tells apart."""
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 20, generator=chance)
    wall = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(inputs, (inputs @ wall).argmax(1))


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def lightning(folder: str) -> None:
    """Lightning's Trainer with its WandbLogger."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import WandbLogger

    class Net(pl.LightningModule):
        def __init__(self, precision: str, seed: int, lr: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = network()

        def training_step(self, batch, number):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, number):
            self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.lr)

    for seed, is_mixed in KINDS:
        pl.seed_everything(seed)
        precision = "bf16-mixed" if is_mixed else "32-true"
        quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            max_epochs=2,
            precision=precision,
            accelerator="cpu",
            log_every_n_steps=5,
            logger=WandbLogger(project="lightning", save_dir=folder, offline=True),
            **quiet,
        )
        loader = torch.utils.data.DataLoader
        trainer.fit(Net(precision, seed), loader(points(640, 1), 32), loader(points(200, 2), 100))
        wandb.finish()


def transformers(folder: str) -> None:
    """Hugging Face's Trainer with report_to="wandb"."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    def words(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
        ids = torch.randint(5, 50, (count, 8), generator=torch.Generator().manual_seed(seed))
        return [{"input_ids": row, "labels": (row[0] > 27).long()} for row in ids]

    for seed, is_mixed in KINDS:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        arguments = TrainingArguments(
            output_dir=f"{folder}/out-{seed}-{is_mixed}",
            run_name=f"bert-{seed}-{is_mixed}",
            seed=seed,
            bf16=is_mixed,
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=5,
            report_to="wandb",
            disable_tqdm=True,
        )
        Trainer(
            model=BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=2, **sizes)),
            args=arguments,
            train_dataset=words(320, 1),
            eval_dataset=words(100, 2),
            compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
        ).train()
        wandb.finish()


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    for name in names:
        folder = Path(place) / name
        folder.mkdir(parents=True)
        os.environ["WANDB_DIR"] = str(folder)
        {"lightning": lightning, "transformers": transformers}[name](str(folder))
        wandb.teardown()  # so that it reads the next folder
