"""The modules of a network among which the search chooses, in the order in which a forward calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ampcompare.config.schema import Config
from ampcompare.data.batch import each
from ampcompare.errors import UserError
from ampcompare.machine.device import is_cuda, is_host, resolve_device, set_numerics
from ampcompare.machine.environment import cpu_name
from ampcompare.models import record_of
from ampcompare.precision.keep import CannotKeep, matching
from ampcompare.train.build import build_trainer, load_data
from ampcompare.train.loaders import make_loader
from ampcompare.train.scores import call


@dataclass(frozen=True)
class Network:
    """The names of the modules that a forward calls, each once, in the order of their first call; `work` are
    those of them below which none is called, without what is kept anyway; `device` is what they run on,
    `on_host` whether that has no memory of its own, `sources` are hashes and versions of what is not ours.
    """

    called: tuple[str, ...]
    work: tuple[str, ...]
    device: str
    on_host: bool = False
    sources: Mapping[str, Any] = field(default_factory=dict)

    def parts(self, name: str) -> tuple[str, ...]:
        """The called modules next below one ("" is the network)."""
        below = [other for other in self.called if other != name and _is_below(other, name)]
        return tuple(o for o in below if not any(_is_below(o, between) for between in below if between != o))


def _is_below(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def look_at(config: Config) -> Network:
    """Build the network of a run and call it once on two samples of the training data, in fp32.

    `config` is that of the baseline. Raises UserError for a run that cannot be.
    """
    device = resolve_device(config.device)
    set_numerics(config)
    data = load_data(config)
    train = make_loader(config, data.train, device, training=True)
    test = make_loader(config, data.test, device, training=False)
    model = build_trainer(config, data, train, device, test=test).model
    inputs, _ = next(iter(test.epoch(0)))
    few = each(inputs, lambda tensor: tensor[:2])
    order: dict[nn.Module, None] = {}
    hooks = [m.register_forward_pre_hook(lambda m, _: order.setdefault(m)) for m in model.modules()]
    model.train()  # some have parts that are called in training alone
    with torch.no_grad():
        call(model, few)
    for hook in hooks:
        hook.remove()
    names = {module: name for name, module in reversed([*model.named_modules()])}
    called = tuple(names[module] for module in order if names[module])
    try:
        kept = matching(model, config.precision.keep_fp32 or ())
    except CannotKeep as problem:
        raise UserError(problem) from None
    above = {name[:place] for name in called for place, character in enumerate(name) if character == "."}
    work = tuple(n for n in called if n not in above and not any(n == k or _is_below(n, k) for k in kept))
    name = torch.cuda.get_device_name(device) if is_cuda(device) else cpu_name()
    sources = {**record_of(config.model.name, model), **data.recorded, "torch": torch.__version__}
    return Network(called, work, name, is_host(device), sources)
