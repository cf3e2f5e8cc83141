"""Projects, their runs, sweeps and saved views, and what a query sees of them."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from support.wandb_server.graph import connection

EXIT_INTERRUPTED = 255  # what the client reports after Ctrl-C
CREATED = "2026-01-01T00:00:00Z"


@dataclass
class Run:
    """One run.

    As on W&B's server, `rows` is the history by `_step`: if `wandb sync` sends a run of which the server has
    half, every row comes after those. `config` is unwrapped here; `{"value": ...}` is only in requests.
    """

    id: str
    project: Project
    name: str = ""
    state: str = "pending"
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: list[str] = field(default_factory=list)
    sweep: Sweep | None = None
    created: str = CREATED
    exit_code: int | None = None
    stop_requested: bool = False
    preempting: bool = False

    @property
    def storage_id(self) -> str:
        return f"{self.project.name}:{self.id}"

    @property
    def history(self) -> list[dict[str, Any]]:
        return [self.rows[step] for step in sorted(self.rows)]

    def update(self, given: Mapping[str, Any]) -> None:
        """Take in the input of `upsertBucket`."""
        wrapped = json.loads(given.get("config") or "{}")
        self.config |= {key: value.get("value", value) for key, value in wrapped.items()}
        self.summary = json.loads(given.get("summaryMetrics") or "null") or self.summary
        self.name = given.get("displayName") or self.name or self.id
        self.group = given.get("groupName") or self.group
        self.job_type = given.get("jobType") or self.job_type
        self.notes = given.get("notes") or self.notes
        self.tags = self.tags if given.get("tags") is None else given["tags"]
        self.state = given.get("state") or "running"

    def stream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take in one request of the file stream: rows, the summary, the end. Says whether to stop."""
        for name, chunk in (body.get("files") or {}).items():
            offset, lines = chunk.get("offset", 0), chunk["content"]
            if name == "wandb-history.jsonl":
                self.rows |= {row["_step"]: row for row in map(json.loads, lines)}
            elif name == "wandb-events.jsonl":
                self.events[offset : offset + len(lines)] = lines
            elif name == "wandb-summary.json":
                self.summary = json.loads(lines[-1])
        self.preempting |= bool(body.get("preempting"))
        if body.get("complete"):
            self.exit_code = body.get("exitcode", 0)
            self.state = "failed" if self.exit_code else "finished"
            if self.stop_requested or self.exit_code == EXIT_INTERRUPTED:
                self.state = "killed"
            if self.preempting and self.exit_code:  # a sweep hands it out again
                self.state = "preempted"
        return {"stopped": self.stop_requested, "exitcode": self.exit_code, "limits": {}}

    def node(self, base_url: str) -> dict[str, Any]:
        """Return what a query may ask of the run."""

        def rows(given: Mapping[str, Any]) -> list[str]:
            low, high = given.get("minStep") or 0, given.get("maxStep") or max(self.rows, default=0) + 1
            return [json.dumps(row) for row in self.history if low <= row["_step"] < high]

        def files(given: Mapping[str, Any]) -> dict[str, Any]:
            names = given.get("names") or list(self.files)
            found = [(name, f"{base_url}/storage/{self.storage_id}/{name}") for name in names]
            return connection([{"name": name, "url": url, "directUrl": url} for name, url in found], given)

        return {
            "__typename": "Run",
            "id": self.storage_id,
            "name": self.id,
            "displayName": self.name,
            "project": lambda _: self.project.node(base_url),
            "sweepName": self.sweep.id if self.sweep else None,
            "state": self.state,
            "config": json.dumps({key: {"value": value} for key, value in self.config.items()}),
            "summaryMetrics": json.dumps(self.summary),
            "group": self.group,
            "jobType": self.job_type,
            "notes": self.notes,
            "tags": self.tags,
            "createdAt": self.created,
            "projectId": "1",
            "user": {"id": "user-1", "name": "tester", "username": "tester"},
            "stopped": self.stop_requested,
            "historyLineCount": len(self.rows),
            "eventsLineCount": len(self.events),
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]),
            "eventsTail": json.dumps(self.events[-1:]),
            "wandbConfig": json.dumps({"t": {}}),
            "historyKeys": {"lastStep": max(self.rows, default=-1), "sets": [], "keys": {}},
            "history": rows,
            "events": self.events,
            "files": files,
        }


@dataclass
class Sweep:
    """A sweep. Each method is a grid here: what is tested is the way of a value, not the search."""

    id: str
    project: Project
    text: str
    state: str = "RUNNING"
    agents: dict[str, list[Run]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)  # the parameters of each run, in order

    def __post_init__(self) -> None:
        self.config: dict[str, Any] = yaml.safe_load(self.text)
        self.points = _grid(self.config.get("parameters") or {})

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.project.runs.values() if run.sweep is self]

    def add_agent(self) -> str:
        agent = f"agent-{self.id}-{len(self.agents)}"
        self.agents[agent] = []
        return agent

    def heartbeat(self, agent: str, running: Mapping[str, bool]) -> list[dict[str, Any]]:
        """Return the commands for an agent that reports which runs it has."""
        for run in self.agents[agent]:
            if run.state == "pending" and run.id not in running:
                run.state = "failed"  # its process ended before it reached wandb.init
        if running:
            asked = [run for run in self.agents[agent] if run.id in running and run.stop_requested]
            return [{"type": "stop", "run_id": run.id} for run in asked]
        kind, run = "resume", next((run for run in self.runs if run.state == "preempted"), None)
        if run is not None:
            self.state, run.state, run.preempting = "RUNNING", "pending", False
        elif (point := next(self.points, None)) is not None:
            kind, run = "run", self.project.run(f"{self.id}{len(self.runs):03d}")
            run.sweep, run.config = self, dict(point)
            self.tried.append(point)
        else:
            self.state = "FINISHED"
            return [{"type": "exit"}]
        self.agents[agent].append(run)
        args = {key: {"value": value} for key, value in self.tried[self.runs.index(run)].items()}
        return [{"type": kind, "run_id": run.id, "program": self.config.get("program"), "args": args}]

    def node(self, base_url: str) -> dict[str, Any]:
        """Return what a query may ask of the sweep."""
        return {
            "__typename": "Sweep",
            "id": f"sweep-{self.id}",
            "name": self.id,
            "displayName": self.config.get("name"),
            "method": self.config["method"],
            "state": self.state,
            "config": self.text,
            "runs": lambda given: connection([run.node(base_url) for run in self.runs], given),
            "project": lambda _: self.project.node(base_url),
        }


def _grid(parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination, nested as the parameters are."""
    columns = [
        _grid(rule["parameters"]) if "parameters" in rule else rule.get("values") or [rule["value"]]
        for rule in parameters.values()
    ]
    for row in itertools.product(*columns):
        yield dict(zip(parameters, row, strict=True))


@dataclass
class Project:
    """Runs, sweeps and saved views under one name."""

    entity: str
    name: str
    runs: dict[str, Run] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, run_id: str) -> Run:
        """Return the run with that id; it is created if needed."""
        return self.runs.setdefault(run_id, Run(run_id, self))

    def node(self, base_url: str) -> dict[str, Any]:
        """Return what a query may ask of the project."""

        def runs(given: Mapping[str, Any]) -> list[dict[str, Any]]:
            wanted = json.loads(given.get("filters") or "{}")
            return [run.node(base_url) for run in self.runs.values() if matches(run, wanted)]

        def one_of(things: Mapping[str, Any], *names: str) -> Any:
            def one(given: Mapping[str, Any]) -> dict[str, Any] | None:
                found = things.get(next(given[name] for name in names if name in given))
                return found.node(base_url) if found else None

            return one

        def views(given: Mapping[str, Any]) -> dict[str, Any]:
            kind, name = given.get("viewType"), given.get("viewName")
            chosen = [v for v in self.views.values() if v["type"] == kind and name in (None, v["name"])]
            return connection(chosen, given)

        return {
            "__typename": "Project",
            "isBenchmark": False,
            "createdAt": CREATED,
            "internalId": "1",
            "id": f"project-{self.name}",
            "name": self.name,
            "entityName": self.entity,
            "entity": {"id": "entity-1", "name": self.entity},
            "runCount": lambda given: len(runs(given)),
            "runs": lambda given: connection(runs(given), given),
            "run": one_of(self.runs, "name"),
            "bucket": one_of(self.runs, "name"),
            "sweep": one_of(self.sweeps, "sweepName", "name"),
            "sweeps": lambda given: connection([s.node(base_url) for s in self.sweeps.values()], given),
            "allViews": views,
        }

    def save_view(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a workspace or report, by `id` where it has one: base64, which is decoded from its URL."""
        own = b64encode(f"View:{self.name}{len(self.views)}".encode()).decode()
        view_id = given.get("id") or own
        kept = {"id": view_id, "project": {"name": self.name, "entityName": self.entity}}
        is_new = view_id not in self.views
        view = self.views.setdefault(view_id, kept)
        view |= {key: value for key, value in given.items() if key != "id" and value is not None}
        return {"view": view | {"updatedAt": CREATED}, "inserted": is_new}


def matches(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Whether the run passes a filter of W&B's: $and, $or, its name, its sweep."""
    known = {"name": run.id, "sweep": run.sweep.id if run.sweep else None}

    def passes(key: str, value: Any) -> bool:
        if key in ("$and", "$or"):
            found = [matches(run, part) for part in value]
            return all(found) if key == "$and" else not found or any(found)
        return known[key] in (value["$in"] if isinstance(value, dict) else [value])

    return all(passes(key, value) for key, value in wanted.items())
