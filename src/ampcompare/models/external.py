"""Networks of libraries and users: `timm:NAME`, `torchvision:NAME`, `pkg.mod:build`, `./net.py:build`."""

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

WEIGHTS = {"timm": "pretrained", "torchvision": "weights"}  # a library's argument for pretrained weights


def build_external(name: str, num_classes: int | None, kwargs: Mapping[str, Any]) -> nn.Module:
    """Build a network that is not built in.

    Args:
        num_classes: The number of classes, None if it is not known. It is passed if the builder accepts it.

    Raises:
        UserError: There is no such network, the builder does not accept an argument, or it fails.
    """
    builder = find_builder(name)
    defaults = {} if num_classes is None else {"num_classes": num_classes}
    failure = f"cannot build the network{_describe_arguments(name, num_classes, kwargs)}"
    with plugins.wrap_plugin_errors(MODELS, name, failure, builder.file):
        model = plugins.call(builder.value, kwargs, key="model.kwargs", name=name, defaults=defaults)
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise MODELS.make_error(
            name,
            f"returned {describe_type(model)}; "
            "expected a torch.nn.Module with at least one trainable parameter",
        )
    return model


def _describe_arguments(name: str, num_classes: int | None, kwargs: Mapping[str, Any]) -> str:
    """Return which arguments may be to blame if a network cannot be built: classes and weights."""
    text = "" if num_classes is None else f" for num_classes={num_classes}"
    argument = WEIGHTS.get(name.partition(":")[0], "")
    weights = kwargs.get(argument)
    if weights:
        text = f"{text} with the weights of model.kwargs.{argument}={weights!r}"
    return text


def describe_source(name: str, model: nn.Module) -> dict[str, Any]:
    """Return the version and the number of parameters of a network, for its record.

    Empty for a built-in network.
    """
    if name in BUILT_IN or name in RESNETS:
        return {}
    count = sum(p.numel() for p in model.parameters())
    return {"model_source": find_builder(name).source, MODEL_PARAMETERS: count}


def find_builder(name: str) -> Plugin:
    """Return the function that builds a network; for a library, `source` is the library's version.

    Raises:
        UserError: There is no such network, or the library is not installed.
    """
    library, _, short = name.partition(":")
    if library == "timm":
        if find_spec("timm") is None:
            raise MODELS.make_error(
                name,
                "needs timm, which is not installed; install it with: pip install 'ampcompare[timm]'",
            )
        import timm

        if not timm.is_model(short.partition(".")[0]):
            raise _make_unknown_error(name, timm.list_models())
        return Plugin(partial(timm.create_model, short), f"timm {timm.__version__}", Path(timm.__file__))
    if library == "torchvision":
        import torchvision
        from torchvision import models

        known = models.list_models()
        if short not in known:
            raise _make_unknown_error(name, known)
        version = torchvision.__version__.partition("+")[0]
        builder = models.get_model_builder(short)
        return Plugin(builder, f"torchvision {version}", Path(torchvision.__file__))
    return plugins.load(MODELS, name)


def _make_unknown_error(name: str, known: Collection[str]) -> UserError:
    library, _, short = name.partition(":")
    hint = did_you_mean(short.lower(), known) or f"it has {len(known):,} networks"
    return MODELS.make_error(name, f"{library} has no network of this name; {hint}")
