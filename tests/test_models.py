"""The networks: parameter counts and shapes."""

from __future__ import annotations

import pytest
import torch

from ampcompare.models import build_model


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet50_with_the_cifar_stem_has_23_5_million_parameters():
    model = build_model("resnet50", "cifar", 10)
    assert parameters(model) == 23_520_842
    assert model.conv1.kernel_size == (3, 3)
    assert model.conv1.stride == (1, 1)
    with torch.device("meta"):
        images = torch.empty(1, 3, 32, 32)
    features = {}
    model = build_model("resnet50", "cifar", 10).to("meta")
    model.layer1.register_forward_hook(lambda m, i, o: features.update(shape=o.shape))
    assert model(images).shape == (1, 10)
    assert features["shape"] == (1, 256, 32, 32)  # no down-sampling before the first stage


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "tiny"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_every_network_gives_logits_of_every_class(name: str, stem: str):
    model = build_model(name, stem, 7).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_the_same_seed_gives_the_same_weights():
    def weights() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.cat([p.flatten() for p in build_model("resnet18", "cifar", 10).parameters()])

    assert torch.equal(weights(), weights())
