"""Networks from elsewhere: `timm:NAME`, `torchvision:NAME`, `pkg.mod:build`, `./net.py:build`."""

from collections.abc import Collection, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from ampcompare import plugins
from ampcompare.errors import UserError, describe_type, did_you_mean
from ampcompare.metrics import MODEL_PARAMETERS
from ampcompare.models.builtin import BUILT_IN, RESNETS
from ampcompare.plugins import MODELS, Plugin

WEIGHTS = {"timm": "pretrained", "torchvision": "weights"}  # the argument by which a library fetches them


def build_external(name: str, num_classes: int | None, kwargs: Mapping[str, Any]) -> nn.Module:
    """The network of that name. `num_classes` is given if it is known and the builder takes it.

    Raises UserError for a name that leads nowhere, for arguments that the builder does not take, and for
    whatever goes wrong as it is called.
    """
    builder = find_builder(name)
    ours = {} if num_classes is None else {"num_classes": num_classes}
    what = f"no network for num_classes={num_classes}" if ours else "no network"
    weights = WEIGHTS.get(name.partition(":")[0], "")
    if asked := kwargs.get(weights):
        what += f" with the weights of model.kwargs.{weights}={asked!r}"
    with plugins.wrap_plugin_errors(MODELS, name, what, builder.file):
        model = plugins.call(builder.value, kwargs, key="model.kwargs", name=name, defaults=ours)
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        expected = "expected a torch.nn.Module that has a parameter to train"
        raise MODELS.make_error(name, f"returned {describe_type(model)}; {expected}")
    return model


def describe_source(name: str, model: nn.Module) -> dict[str, Any]:
    """What a record says of a network from elsewhere: which version it is, and how many parameters it has.
    Nothing of one of ours.
    """
    if name in BUILT_IN or name in RESNETS:
        return {}
    count = sum(p.numel() for p in model.parameters())
    return {"model_source": find_builder(name).source, MODEL_PARAMETERS: count}


def find_builder(name: str) -> Plugin:
    """What makes the network of that name; of a library's `source` is its version. Raises UserError."""
    library, _, short = name.partition(":")
    if library == "timm":
        if find_spec("timm") is None:
            todo = "install it with: pip install 'ampcompare[timm]'"
            raise MODELS.make_error(name, f"needs timm, which is not installed; {todo}")
        import timm

        if not timm.is_model(short.partition(".")[0]):
            raise _make_unknown_error(name, timm.list_models())
        return Plugin(partial(timm.create_model, short), f"timm {timm.__version__}", Path(timm.__file__))
    if library == "torchvision":
        import torchvision
        from torchvision import models

        if short not in (known := models.list_models()):
            raise _make_unknown_error(name, known)
        version = torchvision.__version__.partition("+")[0]
        builder = models.get_model_builder(short)
        return Plugin(builder, f"torchvision {version}", Path(torchvision.__file__))
    return plugins.load(MODELS, name)


def _make_unknown_error(name: str, known: Collection[str]) -> UserError:
    library, _, short = name.partition(":")
    said = did_you_mean(short.lower(), known) or f"it has {len(known):,}"
    return MODELS.make_error(name, f"{library} has no network of this name; {said}")
