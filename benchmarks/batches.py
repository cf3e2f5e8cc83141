"""Batches a second: the seed's way (arrays in memory, PIL transforms, a DataLoader) against ours, on one CPU
thread.

Both crop with padding 4, flip and normalise; that they make the same batch of the same choices is checked
here too. Run as a program it takes {"rounds", "images"} and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import functional

from ampcompare.bench.throughput.baselines import MEAN, STD, PilImages
from ampcompare.data.dataset import build_dataset
from ampcompare.data.loader import PADDING, DeviceLoader
from ampcompare.machine.environment import describe_environment

BATCH = 128


def by_pil(image: Tensor, top: int, left: int, flip: int) -> Tensor:
    """One uint8 [3, 32, 32] image by torchvision's functions on PIL, with the crop and flip given."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture = functional.crop(functional.pad(picture, [PADDING]), top, left, 32, 32)
    picture = functional.hflip(picture) if flip else picture
    return functional.normalize(functional.to_tensor(picture), MEAN, STD)


def run_batches(rounds: int, images: int) -> dict[str, Any]:
    """Images a second of each way in each round, and the largest difference between both for the same
    choices.
    """
    torch.set_num_threads(1)
    data = build_dataset(source="synthetic", root=None, train_limit=images, test_limit=10).train
    ours = DeviceLoader(
        data,
        batch_size=BATCH,
        device="cpu",
        mean=MEAN,
        std=STD,
        augment=True,
        shuffle=True,
        channels_last=False,
    )
    theirs = DataLoader(PilImages(data.images, data.labels), batch_size=BATCH, shuffle=True, num_workers=0)
    plan = next(ours.plans(0))
    expected = torch.stack([by_pil(data.images[i], *choice) for i, *choice in plan.T.tolist()])
    difference = (ours.batch(plan)[0] - expected).abs().max().item()
    rates: dict[str, list[float]] = {"PIL and DataLoader": [], "ours": []}
    for number in range(rounds + 1):
        for name in rates:
            # A pass of ours takes too little time for the clock of a busy machine.
            passes = 1 if name != "ours" else 10
            began = time.perf_counter()
            count = 0
            for _ in range(passes):
                for batch, _labels in theirs if name != "ours" else ours.epoch(number):
                    count += batch.shape[0]
            if number:  # after a round of warm-up
                rates[name].append(count / (time.perf_counter() - began))
    return {
        "images_per_second": rates,
        "largest_difference": difference,
        "batch_size": BATCH,
        "environment": describe_environment(torch.device("cpu")),
    }


if __name__ == "__main__":
    print(json.dumps(run_batches(**json.loads(sys.argv[1]))))
