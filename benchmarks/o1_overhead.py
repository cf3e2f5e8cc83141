"""What O1's casts cost on a CPU: the forward of a narrow ResNet50 against torch.autocast's, in turn.

    python benchmarks/o1_overhead.py [rounds]

The network has ResNet50's 53 convolutions and 161 parameters with an eighth of the channels and 8x8 images,
so that the time is that of Python and dispatch, not of arithmetic. The backends run in turn (A B C A B C),
the figure is the median of the rounds' ratios. Prints one line of JSON after the table, with the machine.
Exit code 1 above 1.25.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck

from ampcompare.machine.environment import describe_environment
from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision

LIMIT = 1.25
FORWARDS = 5  # a round's time is that of so many forwards


def narrow_resnet50(width: int = 8) -> nn.Sequential:
    """ResNet50's blocks (3, 4, 6, 3) from `width` channels up; ResNet50 itself has 64."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = width * 2**stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            shortcut = None
            if block == 0:
                shortcut = nn.Sequential(
                    nn.Conv2d(channels, planes * 4, 1, stride=stride, bias=False), nn.BatchNorm2d(planes * 4)
                )
            layers.append(Bottleneck(channels, planes, stride, shortcut))
            channels = planes * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def forward_ms(precision: Precision, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean time of one forward with its loss, in ms."""
    began = time.perf_counter()
    for _ in range(FORWARDS):
        with precision.forward_context():
            nn.functional.cross_entropy(model(images), labels)
    return (time.perf_counter() - began) / FORWARDS * 1e3


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = narrow_resnet50()
    images, labels = torch.randn(2, 3, 8, 8), torch.tensor([1, 2])
    backends = {name: build_precision(name) for name in ("none", "native", "apex_o1")}
    times: dict[str, list[float]] = {name: [] for name in backends}
    with backends["apex_o1"].session():
        for number in range(rounds + 5):
            for name, precision in backends.items():
                measured = forward_ms(precision, model, images, labels)
                if number >= 5:  # warm-up
                    times[name].append(measured)
    ratios = [o1 / native for o1, native in zip(times["apex_o1"], times["native"], strict=True)]
    ratio = statistics.median(ratios)
    for name, values in times.items():
        print(f"{name:8} {statistics.median(values):7.2f} ms")
    low, high = statistics.quantiles(ratios, n=20)[0], statistics.quantiles(ratios, n=20)[-1]
    print(
        f"apex_o1 / native: {ratio:.2f} (5 to 95 % of {rounds} rounds: {low:.2f} to {high:.2f}; limit "
        f"{LIMIT})"
    )
    environment = describe_environment(torch.device("cpu"))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(json.dumps({"ratio": ratio, "rounds": rounds, "forward_ms": medians, "environment": environment}))
    sys.exit(ratio > LIMIT)


if __name__ == "__main__":
    main()
