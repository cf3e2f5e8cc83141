#!/usr/bin/env python3
"""False alarms of `ampcompare why diff execution=eager,compile`, over many weights and batches.

    python benchmarks/compile_accuracy.py [--seeds 20] [--network resnet20 transformer] [--backend native ...]

Each network is compiled once for each backend. For each seed, the step starts from other weights and takes
another batch, eagerly, compiled and in fp64. No seed may call one of the two less accurate. On two CPU cores,
compiling ResNet20 takes minutes.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

DATA = ("device=cpu", "recipe=reference", "optimizer.momentum=0.9", "precision.init_scale=1024")
NETWORKS = {
    "resnet20": ("model.name=resnet20", "data.source=synthetic", "data.train_limit=256", "batch_size=8"),
    "transformer": (
        f"model.name={Path(__file__)}:build_transformer",
        f"data.source={Path(__file__)}:build_text",
        "batch_size=8",
    ),
}


def build_transformer() -> "object":
    """Return a transformer with two layers, dropout, and a head over 64 letters."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(64, 64), nn.Parameter(torch.randn(16, 64) / 8)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
            x = self.letters(tokens) + self.places[: tokens.shape[1]]
            return {"logits": self.head(self.norm(self.layers(x)))}

    return Transformer()


def build_text(train: bool) -> "object":
    """Return random letters, and the letters that follow."""
    import torch

    letters = torch.randint(0, 64, (256, 17), generator=torch.Generator().manual_seed(int(train)))
    return letters[:, :-1].clone(), letters[:, 1:].clone()


def measure(network: str, backend: str, seeds: int) -> int:
    """Print the errors of each seed, and return the number of false alarms."""
    from ampcompare.why.accuracy import judge
    from ampcompare.why.accuracy_table import describe_verdict
    from ampcompare.why.step import from_options
    from ampcompare.why.step_comparison import StepComparison
    from ampcompare.why.value_pair import ValuePair

    state = from_options([*NETWORKS[network], *DATA, f"backend={backend}", "execution=eager"])
    batches = state.next_steps(seeds)
    began, alarms = time.monotonic(), 0
    comparison = StepComparison(state, ValuePair("execution", ("eager", "compile")))
    print(f"{network}, {backend}: compiled in {time.monotonic() - began:.0f} s", flush=True)
    for seed in range(seeds):
        plain = dataclasses.replace(state.config, backend="none", seed=seed)
        weights = [p.detach().clone() for p in state.build_trainer(plain).model.parameters()]
        comparison.restart(weights, batches[seed])
        result = judge(comparison)
        alarms += result.fault is not None
        print(f"seed {seed}: {describe_verdict(result)}", flush=True)
        if result.left_out:
            print(f"left out: {result.left_out}")
    print(f"{network}, {backend}: {alarms} false alarms in {seeds} seeds", flush=True)
    return alarms


def main(arguments: Sequence[str]) -> int:
    """Measure every network under every backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--network", nargs="+", choices=tuple(NETWORKS), default=[*NETWORKS])
    parser.add_argument("--backend", nargs="+", default=["native_bf16", "native"])
    options = parser.parse_args(arguments)
    pairs = [(network, backend) for network in options.network for backend in options.backend]
    return sum(measure(network, backend, options.seeds) for network, backend in pairs)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
