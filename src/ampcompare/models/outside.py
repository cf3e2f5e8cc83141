"""Networks from elsewhere: `timm:NAME`, `torchvision:NAME`, `pkg.mod:build`, `./net.py:build`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from ampcompare import plugins
from ampcompare.errors import UserError, did_you_mean, kind_of
from ampcompare.metrics import MODEL_PARAMETERS
from ampcompare.models.ours import OURS, RESNETS

KWARGS = "model.kwargs"


@dataclass(frozen=True)
class Builder:
    """What makes the network. `source` tells one version of it from another: the first digits of its file's
    SHA-256, or the library with its version. `weights` is the argument that fetches trained ones, if known.
    """

    build: Callable[..., Any]
    source: str
    file: Path | None = None
    weights: str = ""


def built(name: str, num_classes: int | None, kwargs: Mapping[str, Any]) -> nn.Module:
    """The network of that name. `num_classes` is given if it is known and the builder takes it.

    Raises UserError for a name that leads nowhere, for arguments that the builder does not take, and for
    whatever goes wrong as it is called.
    """
    builder = builder_of(name)
    ours = {} if num_classes is None else {"num_classes": num_classes}
    what = f"no network for num_classes={num_classes}" if ours else "no network"
    if builder.weights and kwargs.get(builder.weights):
        what += f" with the weights of {KWARGS}.{builder.weights}={kwargs[builder.weights]!r}"
    with plugins.blame(plugins.MODELS, name, what, builder.file):
        model = plugins.call(builder.build, kwargs, key=KWARGS, name=name, ours=ours)
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        expected = "expected a torch.nn.Module that has a parameter to train"
        raise plugins.MODELS.refusal(name, f"returned {kind_of(model)}; {expected}")
    return model


def record_of(name: str, model: nn.Module) -> dict[str, Any]:
    """What a record says of a network from elsewhere: which version it is, and how many parameters it has.
    Nothing of one of ours.
    """
    if name in OURS or name in RESNETS:
        return {}
    count = sum(p.numel() for p in model.parameters())
    return {"model_source": builder_of(name).source, MODEL_PARAMETERS: count}


def builder_of(name: str) -> Builder:
    """What makes the network of that name. Raises UserError."""
    library, _, short = name.partition(":")
    if library == "timm":
        return _of_timm(name, short)
    if library == "torchvision":
        return _of_torchvision(name, short)
    found = plugins.load(plugins.MODELS, name)
    return Builder(found.value, found.source, found.file)


def _of_timm(name: str, short: str) -> Builder:
    if find_spec("timm") is None:
        todo = "install it with: pip install 'ampcompare[timm]'"
        raise plugins.MODELS.refusal(name, f"needs timm, which is not installed; {todo}")
    import timm

    if not timm.is_model(short.partition(".")[0]):
        raise _unknown(name, short, timm.list_models())
    return Builder(partial(timm.create_model, short), f"timm {timm.__version__}", weights="pretrained")


def _of_torchvision(name: str, short: str) -> Builder:
    import torchvision
    from torchvision import models

    if short not in (known := models.list_models()):
        raise _unknown(name, short, known)
    source = f"torchvision {torchvision.__version__.partition('+')[0]}"
    return Builder(models.get_model_builder(short), source, weights="weights")


def _unknown(name: str, short: str, known: Collection[str]) -> UserError:
    said = did_you_mean(short.lower(), known) or f"it has {len(known):,}"
    return plugins.MODELS.refusal(name, f"{name.partition(':')[0]} has no network of this name; {said}")
