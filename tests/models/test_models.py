"""The networks, ours and those from elsewhere: names, arguments, shapes, fingerprints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.outside import Outside
from support.refusals import line_of
from support.training import play

from ampcompare import load_runs
from ampcompare.config.load import load_config
from ampcompare.config.validate import ignored_options
from ampcompare.models import build_model


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in model.parameters())


def test_resnet50_with_the_cifar_stem_has_23_5_million_parameters():
    model = build_model("resnet50", "cifar", 10)
    assert count_parameters(model) == 23_520_842
    assert model.conv1.kernel_size == (3, 3)
    assert model.conv1.stride == (1, 1)
    features = {}
    model.to("meta").layer1.register_forward_hook(lambda m, i, o: features.update(shape=o.shape))
    assert model(torch.empty(1, 3, 32, 32, device="meta")).shape == (1, 10)
    assert features["shape"] == (1, 256, 32, 32)  # no down-sampling before the first stage


def test_resnet20_follows_he_et_al_section_4_2():
    model = build_model("resnet20", "cifar", 10)
    assert count_parameters(model) == 269_722  # 0.27 M in table 6
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


@pytest.mark.parametrize(("name", "last"), [("resnet50", "bn3.weight"), ("resnet20", "bn2.weight")])
def test_zero_init_residual_zeroes_each_block_and_no_other_weight(name: str, last: str):
    def weights(zero: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        return build_model(name, "cifar", 10, zero_init_residual=zero).state_dict()

    plain, zeroed = weights(False), weights(True)
    assert all(zeroed[key].any() != key.endswith(last) for key in plain if key.endswith("weight"))
    assert all(torch.equal(plain[key], zeroed[key]) for key in plain if not key.endswith(last))


NET = """from torch import nn

def build(num_classes, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, num_classes))

class More(nn.Sequential):
    def forward(self, x):
        return {"logits": super().forward(x), "more": x} if self.training else super().forward(x)

def more(num_classes):
    return More(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


def test_a_network_may_return_more_in_training_than_in_evaluation(net: Path):
    play("model.name=./net.py:more", "epochs=1")


def test_a_changed_file_is_another_network_for_a_resume(net: Path):
    words = ("model.name=./net.py:build", "output_dir=begun")
    play(*words, "max_steps=5")
    net.write_text(f"{NET}# another\n")
    assert "starting a new run, because run" in play(*words, "resume=auto")
    net.write_text(NET)
    assert "resuming run" in play(*words, "resume=auto")


VIT = (
    "model.name=timm:vit_tiny_patch16_224",
    "model.kwargs={img_size: 32, patch_size: 8, embed_dim: 32, depth: 2, num_heads: 2}",
)
CONVNEXT = (
    "model.name=timm:convnext_tiny",
    "model.kwargs.depths=[1,1,1,1]",
    "model.kwargs={'dims': [8, 8, 16, 16], 'drop_path_rate': 0.1}",
)


def build(name: str, classes: int | None = 10, **kwargs: Any) -> torch.nn.Module:
    """Build a network."""
    return build_model(name, "cifar", classes, kwargs=kwargs)


def get_refusal(name: str, classes: int | None = 10, **kwargs: Any) -> str:
    """Return the line of the error that a build raises."""
    return line_of(build, name, classes, **kwargs)


NAMES = {
    "torchvision:resnet1011": "torchvision has no network of this name; did you mean resnet101?",
    "torchvision:": "torchvision has no network of this name; it has ",
    "timm:convnex_tiny": "timm has no network of this name; did you mean convnext_tiny?",
    "timm:convnext_tiny.nope": "cannot build the network for num_classes=10 (RuntimeError: ",
}


def test_an_unknown_name_in_a_library_is_one_line_with_similar_names(subtests: pytest.Subtests):
    for name, message in NAMES.items():
        with subtests.test(name=name):
            assert get_refusal(name).startswith(f"model.name={name!r}: {message}")


def test_an_exception_of_the_library_is_one_line(outside: Outside):
    from timm.models import _builder

    def lost(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known\nand more")

    outside.replace(_builder, "load_pretrained", lost)
    what = "cannot build the network for num_classes=10"
    weights = f"{what} with the weights of model.kwargs"
    message = f"{weights}.pretrained=True (OSError: Name or service not known)"
    assert message in get_refusal("timm:test_convnext", pretrained=True)
    assert f"{weights}.weights='x' (KeyError: 'x')" in get_refusal("torchvision:resnet18", weights="x")
    unknown = f"{what} (TypeError: ResNet.__init__() got an unexpected keyword argument 'widht_per_group'"
    assert unknown in get_refusal("torchvision:resnet101", widht_per_group=1)


def test_missing_timm_is_one_line_with_the_install_command(outside: Outside):
    outside.uninstall("timm")
    assert get_refusal("timm:convnext_tiny").endswith(
        "needs timm, which is not installed; install it with: pip install 'ampcompare[timm]'"
    )


def test_the_number_of_classes_is_passed_if_it_is_known_and_accepted(net: None):
    assert build("./net.py:build", 7)[2].out_features == 7
    assert build("./net.py:build", None, num_classes=3)[2].out_features == 3
    assert "missing a required argument: 'num_classes'" in get_refusal("./net.py:build", None)
    assert "needs the number of classes, which the data do not give" in get_refusal("resnet18", None)


def test_an_option_without_effect_on_a_network_is_refused_or_reported():
    why = "model.name=tiny takes no arguments; leave it out"
    assert f"model.kwargs.width: {why}" in get_refusal("tiny", width=3)
    words = ["model.name=torchvision:resnet18", "model.stem=imagenet"]
    why = "has no effect: model.name=torchvision:resnet18 is not a built-in network"
    assert ignored_options(load_config(None, words)) == [f"model.stem=imagenet {why}"]
    assert ignored_options(load_config(None, ["model.stem=imagenet"])) == []


@pytest.mark.slow
@pytest.mark.parametrize(("words", "backend"), [(CONVNEXT, "apex_o1"), (VIT, "apex_o2")], ids=["", "vit"])
def test_timms_networks_train_under_every_kind_of_backend(
    tmp_path: Path, words: tuple[str, ...], backend: str
):
    from timm import __version__

    asked = (*words, f"backend={backend}", "optimizer.name=adamw", "optimizer.lr=0.003")
    play(*asked, f"output_dir={tmp_path}")
    (record,) = load_runs([tmp_path])
    losses = record.values("train/loss")
    assert losses[-1] < losses[0]
    assert len(record.values("eval/accuracy")) == 2
    assert record.config["environment"]["model_source"] == f"timm {__version__}"
    assert record.config["model"]["kwargs"] == load_config(None, words).model.kwargs
