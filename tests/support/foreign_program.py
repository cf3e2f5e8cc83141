"""A training as others have theirs, with a recorder in its loop: nothing of our options, of our configs."""

import argparse

import torch

from ampcompare import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--backend", choices=("none", "native"))
parser.add_argument("--lr", type=float)
words = parser.parse_args()

torch.manual_seed(3)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=words.lr)
scaler = torch.amp.GradScaler("cpu", enabled=words.backend == "native")
how = {"config": vars(words), "every": 5, "warmup_steps": 5, "quiet": True}
with Recorder(
    backend=words.backend, seed=3, batch_size=8, scaler=scaler, optimizer=optimizer, **how
) as record:
    for _ in range(20):
        with torch.autocast("cpu", torch.float16, enabled=words.backend == "native"):
            loss = model(torch.randn(8, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        record.step(loss=loss, samples=8)
    record.evaluate(accuracy=0.5)
