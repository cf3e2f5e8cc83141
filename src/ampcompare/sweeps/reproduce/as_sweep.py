"""A publication as a sweep: a grid of its arms and of seeds, for our runner and W&B's agent alike."""

import re
from collections.abc import Sequence
from typing import Any

from ampcompare.config.arguments import parse
from ampcompare.published.publication import load
from ampcompare.sweeps.file import key_of

VARIED = ("published.arm", "seed")  # words change their values, as of any sweep
HEAD = """\
# {about}
# as ampcompare reproduce runs it; the setting of each arm is in the publication's file
# Without server:  ampcompare sweep {file}
# With W&B:        wandb sweep {file}, then on each GPU: wandb agent ENTITY/PROJECT/ID
#                  ampcompare reproduce {name} --runs wandb:ENTITY/PROJECT/ID
"""


def sweep_file(
    name: str,
    seeds: int = 3,
    scale: float = 1.0,
    network: str | None = None,
    words: Sequence[str] = (),
    file: str | None = None,
) -> tuple[str, str]:
    """The name and the text of the sweep that runs a publication in so many seeds; `scale` and `network` are
    for a look. `words` are options of every run, in a `file` of its own they stand in the command. Raises
    UserError for an arm whose first run would be none.
    """
    import yaml

    own = load(name)
    arms = sorted(own.arms, key=lambda arm: arm != own.baseline)  # a sweep takes the first for the baseline
    told: dict[str, Any] = {"published.name": name}
    told |= {"published.scale": scale} if scale != 1 else {}
    told |= {"published.network": network} if network else {}
    given = [f"{key}={value}" for key, value in told.items()]
    given += [word for word in words if key_of(word) not in VARIED]
    first, *_ = [parse([*given, f"published.arm={arm}"]) for arm in arms]
    # A name that is a folder's, too, and other for another scale or network.
    parts = ["reproduce", own.name, f"scale-{scale:g}" if scale != 1 else "", network or ""]
    called = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))
    seen = {"values": arms}, {"values": [first.seed + number for number in range(seeds)]}
    begin = ["${env}", "${interpreter}", "-m", "${program}", "run", "resume=auto"]
    content = {
        "program": "ampcompare",
        "project": first.wandb.project,
        "name": called,
        "method": "grid",
        "parameters": {k: {"value": v} for k, v in told.items()} | dict(zip(VARIED, seen, strict=True)),
        "command": [*begin, *(words if file else ()), "${args_no_hyphens}"],
    }
    about = " ".join(f"{own.title}: {own.source} {own.url}".split())
    head = HEAD.format(about=about, file=file or "sweep.yaml", name=name)
    return called, head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
