"""The networks: parameter counts and shapes; those from elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.quick import QUICK

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.models import build_model
from ampcompare.records import load_runs
from ampcompare.report import analyse_runs


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


def test_resnet20_is_that_of_he_et_al_section_4_2():
    model = build_model("resnet20", "cifar", 10)
    assert parameters(model) == 269_722  # 0.27 M in table 6
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [16] * 7 + [32] * 6 + [64] * 6
    assert [number for number, c in enumerate(convolutions) if c.stride == (2, 2)] == [7, 13]
    assert {c.kernel_size for c in convolutions} == {(3, 3)}  # no projections: shortcuts have no weights
    assert [name for name, _ in model.named_children() if [*model.get_submodule(name).parameters()]] == (
        ["conv1", "bn1", "layer1", "layer2", "layer3", "fc"]
    )


def test_a_shortcut_of_resnet20_carries_every_second_pixel_and_new_channels_are_zero():
    block = build_model("resnet20", "cifar", 10).get_submodule("layer2.0").eval()
    torch.nn.init.zeros_(block.bn2.weight)  # its convolutions add nothing
    images = torch.rand(2, 16, 8, 8)
    found = block(images)
    assert torch.equal(found[:, :16], images[:, :, ::2, ::2])
    assert found.shape == (2, 32, 4, 4)
    assert not found[:, 16:].any()


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "resnet20"])
def test_zero_init_residual_zeroes_each_block_and_no_other_weight(name: str):
    def weights(zero: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        return build_model(name, "cifar", 10, zero_init_residual=zero).state_dict()

    plain, zeroed = weights(False), weights(True)
    changed = {key for key in plain if not torch.equal(plain[key], zeroed[key])}
    last = "bn3" if name == "resnet50" else "bn2"
    assert changed == {key for key in plain if key.endswith(f"{last}.weight")}
    assert all(not zeroed[key].any() for key in changed)
    assert len(changed) == {"resnet50": 16, "resnet18": 8, "resnet20": 9}[name]


NET = """from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes){more})
"""
MINE = "model.name=./net.py:build"


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET.format(more=""))
    return tmp_path / "net.py"


def train(*words: str) -> int:
    return run(load_config(None, [*QUICK, MINE, *words]), Console(file=io.StringIO())).exit_code


def test_another_version_of_a_file_is_another_network_to_reports_and_to_resume(net: Path):
    assert train("seed=1", "max_steps=5", "checkpoint.every_epochs=1", "output_dir=begun") == 0
    assert train("seed=2") == 0
    assert len(analyse_runs(load_runs(["runs"])).groups) == 1
    net.write_text(NET.format(more=", nn.Identity()"))
    assert train("seed=1", "resume=auto", "output_dir=begun") == 0
    assert len(list(Path("begun/checkpoints").iterdir())) == 2  # the other one is left as it was
    assert train("seed=3") == 0
    assert len(analyse_runs(load_runs(["runs"])).groups) == 2
    net.write_text(NET.format(more=""))
    assert train("seed=1", "resume=auto", "output_dir=begun") == 0
