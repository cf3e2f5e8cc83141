#!/usr/bin/env python3
"""Our training beside other people's loops, in turns, as `ampcompare bench` measures.

    python benchmarks/loops.py [--minutes 8] [--json FILE] [KEY=VALUE ...]

- `seed-style`: PIL images, torchvision's transforms and a DataLoader with 8 workers, contiguous images,
  deterministic cuDNN, and `.item()` of loss and correct answers at each step.
- `plain`: what a careful user writes: images on the device, augmented there in batches, channels_last, sums
  on the device that nobody reads.

Both use `torch.autocast`, `torch.amp.GradScaler` and PyTorch's SGD, and none of our training code.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

EXECUTIONS = ("eager", "compile", "cuda_graph", "compile_graph")
BACKENDS = ("none", "native", "native_bf16", "apex_o1", "apex_o2", "fp16")


class PilImages:
    """torchvision.datasets.CIFAR10 without the download: arrays, each a PIL image transformed."""

    def __init__(self, split: Any) -> None:
        from torchvision import transforms

        from ampcompare.config.schema import DataConfig
        from ampcompare.data.device_loaders import PADDING

        normal = transforms.Normalize(DataConfig().mean, DataConfig().std)
        flip, crop = transforms.RandomHorizontalFlip(), transforms.RandomCrop(32, padding=PADDING)
        self.transform = transforms.Compose([crop, flip, transforms.ToTensor(), normal])
        self.arrays = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = split.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.arrays[index])), self.labels[index]


def pil_loader(split: Any, batch_size: int, workers: int) -> Any:
    """Its batches, shuffled."""
    from torch.utils.data import DataLoader

    images: Any = PilImages(split)
    how: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": workers}
    return DataLoader(images, batch_size, persistent_workers=workers > 0, **how)


def build(words: Sequence[str], *, seed_style: bool) -> Any:
    """Such a loop over the data, network, batch size and SGD of a run's words; `native` is with autocast."""
    import torch
    from torch.nn.functional import cross_entropy

    from ampcompare.bench.worker import Training
    from ampcompare.models import build_model
    from ampcompare.system.device import is_channels_last
    from ampcompare.training.run_context import make_config, prepare_run, with_synthetic_data

    config = with_synthetic_data(make_config(words))
    context = prepare_run(config)
    device, mixed = context.world.device, config.backend == "native"
    last = is_channels_last(config.memory_format, device) and not seed_style
    torch.manual_seed(config.seed)
    model = build_model(num_classes=len(context.data.classes), **asdict(config.model)).to(device)
    model = model.to(memory_format=torch.channels_last if last else torch.contiguous_format)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.optimizer.lr, momentum=config.optimizer.momentum
    )
    scaler = torch.amp.GradScaler(device.type, enabled=mixed)
    total, right = torch.zeros((), device=device), torch.zeros((), device=device)
    if seed_style:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        loader = pil_loader(context.data.train, config.batch_size, 8)
        batches = endless(lambda epoch: loader)
    else:
        batches = endless(context.train.epoch)

    def step() -> bool:
        nonlocal total, right
        images, labels = (x.to(device, non_blocking=True) for x in next(batches))
        with torch.autocast(device.type, torch.float16, enabled=mixed):
            logits = model(images)
            loss = cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # sync: GradScaler asks whether there was an overflow
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        correct = (logits.argmax(1) == labels).sum()
        if seed_style:
            loss.item(), correct.item()  # sync: as the seed does
        else:
            total, right = total + loss.detach(), right + correct
        return False

    return Training(step, config.batch_size, device, "float16" if mixed else "float32")


def endless(epoch: Callable[[int], Iterable[Any]]) -> Any:
    return itertools.chain.from_iterable(map(epoch, itertools.count()))


def serve(line: Any, words: Sequence[str], *, by: str) -> None:
    """For a process of `compare`; our own training loads its batches here, too."""
    from ampcompare.bench import worker

    if by == "ours":
        worker.answer(line, lambda: worker.build(words, loads=True))
    else:
        worker.answer(line, lambda: build(words, seed_style=by == "seed-style"))


def main() -> int:
    from rich.console import Console

    from ampcompare.bench import output
    from ampcompare.bench.runner import BenchmarkArm, Schedule, run_benchmark

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--executions", default=",".join(EXECUTIONS))
    asked = parser.parse_args()
    arms = []
    for backend, execution in itertools.product(asked.backends.split(","), asked.executions.split(",")):
        words = (*asked.words, f"backend={backend}", f"execution={execution}")
        options = {"backend": backend, "execution": execution, "loop": "ours"}
        arms.append(BenchmarkArm(options, words, f"{backend} {execution}", partial(serve, by="ours")))
    for backend, name in itertools.product(("none", "native"), ("plain", "seed-style")):
        words = (*asked.words, f"backend={backend}")
        options = {"backend": backend, "execution": "eager", "loop": name}
        arms.append(BenchmarkArm(options, words, f"{backend} {name}", partial(serve, by=name)))
    console = Console(highlight=False)
    found = run_benchmark(arms, Schedule(asked.minutes), console.print)
    output.print_table(found, console)
    console.print(found.machine)
    if asked.json:
        asked.json.write_text(json.dumps(found.model_dump(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
