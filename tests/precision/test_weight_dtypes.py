"""Weights that arrive in 16 or 64 bits train in fp32; frozen and quantised parts stay."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import UnsupportedModel
from ampcompare.precision.weight_dtypes import describe_frozen_parts, list_trainable_dtypes

BACKENDS = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]  # no CPU has TF32
OTHER_DTYPES = [torch.bfloat16, torch.float16, torch.float64]
LOGGER = "ampcompare.precision.base"


class Network(nn.Module):
    """Embedding, normalisation, recurrence, a tied weight and buffers; it casts no inputs itself."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(9, 8)
        self.norm = nn.BatchNorm1d(8)
        self.memory = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.letters.weight
        self.register_buffer("positions", torch.linspace(0, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.letters(x) + self.positions
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.memory(x)[0][:, -1])


def train(name: str, model: nn.Module, batch: tuple[Tensor, Tensor], **options: object) -> list[float]:
    """Take three steps and return the losses."""
    scale = {"loss_scale": 128.0} if REGISTRY[name].scales else {}
    precision = build_precision(name, **scale, **options)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    losses = []
    with precision.training_context():
        for _ in range(3):
            with precision.forward_context():
                loss = F.cross_entropy(model(batch[0]), batch[1])
            precision.backward(loss)
            precision.step(optimizer)
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def make_letters() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 9, (16, 5), generator=generator), torch.arange(16) % 9


def make_images() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 4


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_network_in_another_dtype_trains_as_its_copy_in_fp32(name, dtype, caplog):
    """The losses are those of the same weights converted by hand: bit for bit."""
    torch.manual_seed(0)
    arrived = Network().to(dtype)
    by_hand = copy.deepcopy(arrived).float()
    expected = train(name, by_hand, make_letters())
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert train(name, arrived, make_letters()) == expected
    (record,) = [r for r in caplog.records if r.name == LOGGER]
    message = record.getMessage()
    assert str(dtype).removeprefix("torch.") in message
    assert "precision.weights=keep" in message
    assert message.isprintable()
    trained = set(list_trainable_dtypes(arrived.parameters()))
    assert REGISTRY[name].weight_dtype in trained
    assert trained <= {REGISTRY[name].weight_dtype, "float32"}


class Int8Linear(nn.Module):
    """A quantised layer: int8 weights in a buffer, a 16-bit scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().max() / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


class Adapted(nn.Module):
    """A frozen 16-bit encoder, a quantised layer, and trainable layers around and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).requires_grad_(False)
        self.small = Int8Linear(nn.Linear(8, 8))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.small(self.encoder(self.stem(x)))))


@pytest.mark.parametrize("name", BACKENDS)
def test_frozen_and_quantised_parts_stay_and_are_named(name):
    torch.manual_seed(0)
    model = Adapted().bfloat16()

    def list_frozen() -> list[Tensor]:
        return [*model.encoder.parameters(), *model.small.buffers()]

    before = [tensor.clone() for tensor in list_frozen()]
    losses = train(name, model, make_images())
    assert losses[-1] < losses[0]
    for tensor, value in zip(list_frozen(), before, strict=True):
        assert tensor.dtype is value.dtype
        assert torch.equal(tensor, value)
    assert describe_frozen_parts(model) == {"encoder": "bfloat16", "small": "bfloat16, int8"}
    assert REGISTRY[name].weight_dtype in list_trainable_dtypes(model.parameters())


@pytest.mark.parametrize(
    ("name", "kept"), [("none", "float16"), ("native_bf16", "float16"), ("bf16", "bfloat16")]
)
def test_keep_leaves_the_dtype(name, kept, caplog):
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 9)).half()
    with caplog.at_level(logging.WARNING):
        build_precision(name, weights="keep").prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not caplog.records
    assert list_trainable_dtypes(model.parameters()) == [kept]


def test_native_refuses_fp16_weights_that_are_kept_in_one_line():
    model = nn.Linear(4, 2).half()
    with pytest.raises(UnsupportedModel) as refused:
        build_precision("native", weights="keep").prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "precision.weights=float32" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["apex_o2", "bf16"])
def test_lazy_weights_are_refused_where_they_would_be_converted(name):
    model = nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(4))
    with pytest.raises(UnsupportedModel, match=f"backend={name}: .*lazy layers .*: 1;"):
        build_precision(name).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
