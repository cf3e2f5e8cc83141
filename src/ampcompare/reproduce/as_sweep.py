"""A publication as a sweep: a grid of its arms and of seeds, for our runner and W&B's agent alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.config.arguments import parse
from ampcompare.config.schema import Config
from ampcompare.published.publication import Publication, load
from ampcompare.sweeps.file import key_of

VARIED = ("published.arm", "seed")  # words change their values, as of any sweep


@dataclass(frozen=True)
class Repetition:
    """What is to be run of a publication: `name` as it was given, in how many seeds, for a look how much of
    it and with which network; `words` are options of every run.
    """

    name: str
    seeds: int = 3
    scale: float = 1.0
    network: str | None = None
    words: tuple[str, ...] = ()

    @property
    def publication(self) -> Publication:
        """Raises UserError."""
        return load(self.name)

    @property
    def arms(self) -> list[str]:
        """The baseline first: a sweep takes the first value for it."""
        own = self.publication
        return sorted(own.arms, key=lambda arm: arm != own.baseline)

    @property
    def sweep_name(self) -> str:
        """A name that is a folder's, too, and other for another scale or network."""
        less = [f"scale-{self.scale:g}"] if self.scale != 1 else []
        parts = ["reproduce", self.publication.name, *less, *([self.network] if self.network else [])]
        return re.sub(r"[^\w.-]+", "-", "-".join(parts))

    def options(self) -> dict[str, Any]:
        """What every run is told of it."""
        told: dict[str, Any] = {"published.name": self.name}
        told |= {"published.scale": self.scale} if self.scale != 1 else {}
        return told | ({"published.network": self.network} if self.network else {})

    def configs(self) -> list[Config]:
        """The config of every arm's first run. Raises UserError where there would be none."""
        given = [f"{key}={value}" for key, value in self.options().items()]
        given += [word for word in self.words if key_of(word) not in VARIED]
        return [parse([*given, f"published.arm={arm}"]) for arm in self.arms]

    def content(self, words: Sequence[str] = ()) -> dict[str, Any]:
        """The sweep, as its file has it; `words` stand in its command."""
        first = self.configs()[0]
        parameters: dict[str, Any] = {key: {"value": value} for key, value in self.options().items()}
        parameters["published.arm"] = {"values": self.arms}
        parameters["seed"] = {"values": [first.seed + number for number in range(self.seeds)]}
        begin = ["${env}", "${interpreter}", "-m", "${program}", "run", "resume=auto"]
        return {
            "program": "ampcompare",
            "project": first.wandb.project,
            "name": self.sweep_name,
            "method": "grid",
            "parameters": parameters,
            "command": [*begin, *words, "${args_no_hyphens}"],
        }

    def text(self, words: Sequence[str] = (), file: str = "sweep.yaml") -> str:
        """The file, with what it is and how it is run above."""
        import yaml

        own, name = self.publication, self.name
        head = (
            f"# {' '.join(f'{own.title}: {own.source} {own.url}'.split())}",
            "# as ampcompare reproduce runs it; the setting of each arm is in the publication's file",
            f"# Without server:  ampcompare sweep {file}",
            f"# With W&B:        wandb sweep {file}, then on each GPU: wandb agent ENTITY/PROJECT/ID",
            f"#                  ampcompare reproduce {name} --runs wandb:ENTITY/PROJECT/ID",
        )
        content = yaml.safe_dump(self.content(words), sort_keys=False, allow_unicode=True)
        return "\n".join((*head, content))
