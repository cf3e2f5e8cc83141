"""Sweeps: what is tried next, and what an agent is told when it reports."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from support.wandb_server.graph import connection
from support.wandb_server.store import Project, Run, now

Path = tuple[str, ...]


@dataclass
class Sweep:
    """A sweep. Bayes proposes at random here: what is tested is the way of a value, not the search."""

    id: str
    project: Project
    text: str
    state: str = "RUNNING"
    agents: dict[str, list[Run]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)  # the parameters of each run, in order

    def __post_init__(self) -> None:
        self.config: dict[str, Any] = yaml.safe_load(self.text)
        leaves = dict(_leaves(self.config.get("parameters") or {}))
        method = self.config["method"]
        proposals = _grid(leaves) if method == "grid" else _random(leaves, random.Random(0))
        self.proposals: Iterator[dict[str, Any]] = itertools.islice(proposals, self.config.get("run_cap"))

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.project.runs.values() if run.sweep is self]

    def add_agent(self) -> str:
        agent = f"agent-{self.id}-{len(self.agents)}"
        self.agents[agent] = []
        return agent

    def heartbeat(self, agent: str, running: Mapping[str, bool]) -> list[dict[str, Any]]:
        """The commands for an agent that says which runs it has."""
        for run in self.agents[agent]:
            if run.state == "pending" and run.id not in running:
                run.state = "failed"  # its process ended before it reached wandb.init
        stop = [
            r
            for r in self.agents[agent]
            if r.id in running and (r.stop_requested or self.state == "CANCELED")
        ]
        if running:
            return [{"type": "stop", "run_id": run.id} for run in stop]
        if self.state == "PAUSED":
            return []
        taken = next((run for run in self.runs if run.state == "preempted"), None)
        if taken and self.state in ("RUNNING", "FINISHED"):
            self.state, taken.state, taken.preempting = "RUNNING", "pending", False
            return [self._command(agent, "resume", taken, self.tried[self.runs.index(taken)])]
        chosen = next(self.proposals, None) if self.state == "RUNNING" else None
        if chosen is None:
            self.state = "FINISHED" if self.state == "RUNNING" else self.state
            return [{"type": "exit"}]
        run = self.project.run(f"{self.id}{len(self.runs):03d}")
        run.sweep, run.config = self, dict(chosen)
        self.tried.append(chosen)
        return [self._command(agent, "run", run, chosen)]

    def _command(self, agent: str, kind: str, run: Run, chosen: Mapping[str, Any]) -> dict[str, Any]:
        self.agents[agent].append(run)
        args = {key: {"value": value} for key, value in chosen.items()}
        return {"type": kind, "run_id": run.id, "program": self.config.get("program"), "args": args}

    def node(self, base_url: str) -> dict[str, Any]:
        """What a query may ask of the sweep."""
        return {
            "__typename": "Sweep",
            "id": f"sweep-{self.id}",
            "name": self.id,
            "displayName": self.config.get("name"),
            "method": self.config["method"],
            "state": self.state,
            "config": self.text,
            "createdAt": now(),
            "runCount": len(self.runs),
            "runs": lambda a: connection([r.node(base_url) for r in self.runs], a),
            "project": lambda _: self.project.node(base_url),
        }


def _leaves(parameters: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for name, rule in parameters.items():
        if "parameters" in rule:
            yield from _leaves(rule["parameters"], (*path, name))
        else:
            yield (*path, name), rule


def _nest(values: Mapping[Path, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return tree


def _grid(leaves: Mapping[Path, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    columns = [[rule["value"]] if "value" in rule else rule["values"] for rule in leaves.values()]
    for row in itertools.product(*columns):
        yield _nest(dict(zip(leaves, row, strict=True)))


def _random(leaves: Mapping[Path, Mapping[str, Any]], dice: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        yield _nest({path: _draw(rule, dice) for path, rule in leaves.items()})


def _draw(rule: Mapping[str, Any], dice: random.Random) -> Any:
    if "value" in rule:
        return rule["value"]
    if "values" in rule:
        return dice.choice(rule["values"])
    return math.exp(dice.uniform(math.log(rule["min"]), math.log(rule["max"])))  # log_uniform_values
