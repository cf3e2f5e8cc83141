"""Networks from elsewhere: their names, arguments and fingerprints, and that they train as ours do."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.quick import QUICK

from ampcompare.config.check import remarks
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.models import build_model
from ampcompare.records import load_runs

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
    return build_model(name, "cifar", classes, kwargs=kwargs)


def refusal(name: str, classes: int | None = 10, **kwargs: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(name, classes, **kwargs)
    (line,) = caught.value.lines
    return line


NAMES = {
    "torchvision:resnet1011": "torchvision has no network of this name; did you mean resnet101?",
    "torchvision:": "torchvision has no network of this name; it has ",
    "timm:convnex_tiny": "timm has no network of this name; did you mean convnext_tiny?",
    "timm:convnext_tiny.nope": "no network for num_classes=10 (RuntimeError: ",
}


def test_a_name_that_the_library_lacks_is_one_line_with_near_ones(subtests: pytest.Subtests):
    for name, said in NAMES.items():
        with subtests.test(name=name):
            assert refusal(name).startswith(f"model.name={name!r}: {said}")


def test_what_the_library_raises_is_one_line(monkeypatch: pytest.MonkeyPatch):
    from timm.models import _builder

    def lost(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known\nand more")

    monkeypatch.setattr(_builder, "load_pretrained", lost)
    what = "no network for num_classes=10 ("
    assert f"{what}OSError: Name or service not known)" in refusal("timm:test_convnext", pretrained=True)
    assert f"{what}KeyError: 'x')" in refusal("torchvision:resnet18", weights="x")
    unknown = f"{what}TypeError: ResNet.__init__() got an unexpected keyword argument 'widht_per_group'"
    assert unknown in refusal("torchvision:resnet101", widht_per_group=1)


def test_timm_that_is_not_installed_is_one_line_that_says_how(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert refusal("timm:convnext_tiny").endswith(
        "needs timm, which is not installed; install it with: pip install 'ampcompare[timm]'"
    )


NET = """from torch import nn

def build(num_classes, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, num_classes))

def plain(width=8):
    return nn.Linear(8, width)

def empty():
    return nn.ReLU()

def volume(num_classes):
    return nn.Conv3d(1, 2, 3)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)


def test_the_number_of_classes_is_given_where_it_is_known_and_taken(net: None):
    assert build("./net.py:build", 7)[2].out_features == 7
    assert build("./net.py:build", 7, num_classes=3)[2].out_features == 3
    assert build("./net.py:build", None, num_classes=3)[2].out_features == 3
    assert build("./net.py:plain", 7, width=2).out_features == 2
    assert "missing a required argument: 'num_classes'" in refusal("./net.py:build", None)
    assert "gives logits of classes, and the data have none" in refusal("resnet18", None)


def test_what_has_no_effect_on_a_network_is_refused_or_said():
    why = "model.name=tiny takes no arguments; leave it out"
    assert f"model.kwargs.width: {why}" in refusal("tiny", width=3)
    words = ["model.name=torchvision:resnet18", "model.stem=imagenet"]
    why = "has no effect: model.name=torchvision:resnet18 is none of our networks"
    assert remarks(load_config(None, words)) == [f"model.stem=imagenet {why}"]
    assert remarks(load_config(None, ["model.stem=imagenet"])) == []


def train(*words: str) -> None:
    assert run(load_config(None, [*QUICK, *words]), Console(file=io.StringIO())).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "backend"),
    [(CONVNEXT, "apex_o1"), (VIT, "apex_o2")],
    ids=["convnext apex_o1", "vit apex_o2"],
)
def test_timms_networks_train_under_every_kind_of_backend(
    tmp_path: Path, words: tuple[str, ...], backend: str
):
    from timm import __version__

    asked = (*words, f"backend={backend}", "optimizer.name=adamw", "optimizer.lr=0.003")
    train(*asked, f"output_dir={tmp_path}")
    (record,) = load_runs([tmp_path])
    losses = record.values("train/loss")
    assert losses[-1] < losses[0]
    assert len(record.values("eval/accuracy")) == 2
    assert record.config["environment"]["model_source"] == f"timm {__version__}"
    assert record.config["model"]["kwargs"] == load_config(None, words).model.kwargs
