"""Sparse gradients, as `nn.Embedding(sparse=True)` has, are trained, clipped and measured as dense ones."""

import pytest
import torch
from support.training import trainer
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.precision.registry import REGISTRY

TOKENS = 12


class Words(nn.Module):
    """A mean over embeddings; the last token is in no batch."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, 8, sparse=sparse)
        self.bag = nn.EmbeddingBag(TOKENS, 8, mode="sum", sparse=sparse)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1) + self.bag(tokens))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return tokens, several of them more than once in a sample, and classes."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, TOKENS - 1, (16, 6), generator=generator)
    return tokens, tokens.sum(1) % 4


def run_steps(
    backend: str, *, sparse: bool, accumulate: int, **clip: float
) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    options = {"loss_scale": 256.0} if REGISTRY[backend].scales else {}
    own = trainer(backend, Words(sparse=sparse), TrainingConfig(**clip), lr=0.2, **options)
    rows = [
        own.step([batch(step * accumulate + part) for part in range(accumulate)], diagnose=True).diagnostics
        for step in range(4)
    ]
    return own.model, [dict(row) for row in rows]


CLIPS: dict[str, dict[str, float]] = {"none": {}, "both": {"clip_norm": 0.05, "clip_value": 0.01}}
# What does not count the zeros of a gradient, which a sparse one does not store.
KEYS = (metrics.GRADIENT_NORM, metrics.UNDERFLOW, metrics.UNDERFLOW_UNSCALED, metrics.EXPONENTS)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(
    ("backend", "accumulate"), [("none", 3), ("native", 3), ("apex_o1", 3), ("apex_o2", 1), ("bf16", 3)]
)
def test_weights_and_diagnostics_are_those_of_dense_gradients(backend: str, clip: str, accumulate: int):
    dense, right = run_steps(backend, sparse=False, accumulate=accumulate, **CLIPS[clip])
    sparse, rows = run_steps(backend, sparse=True, accumulate=accumulate, **CLIPS[clip])
    tolerance = 1e-5 if backend == "none" else 0.05
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    for row, expected in zip(rows, right, strict=True):
        assert all(value.isfinite().all() for value in row.values())
        keys = KEYS if backend == "none" else KEYS[:1]
        for key in keys:
            torch.testing.assert_close(row[key], expected[key], rtol=tolerance, atol=tolerance)
