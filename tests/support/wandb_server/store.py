"""Projects, runs and saved views, and what a query sees of them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from support.wandb_server.graph import connection

if TYPE_CHECKING:
    from support.wandb_server.sweeps import Sweep

EXIT_INTERRUPTED = 255  # what the client reports after Ctrl-C
_moments = count()


def now() -> str:
    """A time stamp, a millisecond later at every call, so that runs have an order."""
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=next(_moments))
    return moment.isoformat().replace("+00:00", "Z")


@dataclass
class Run:
    """One run. `config` is unwrapped here, `{"value": ...}` only on the wire; `rows` is the history by
    `_step`.

    By step as at W&B: `wandb sync` of a run that the server has half of sends every row, after those that it
    has.
    """

    id: str
    project: Project
    number: int
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
    exit_code: int | None = None
    stop_requested: bool = False
    preempting: bool = False
    created_at: str = field(default_factory=now)
    heartbeat_at: str = field(default_factory=now)

    @property
    def storage_id(self) -> str:
        return f"run-{self.number}"

    @property
    def history(self) -> list[dict[str, Any]]:
        return [self.rows[step] for step in sorted(self.rows)]

    def update(self, given: Mapping[str, Any]) -> None:
        """Take in the input of `upsertBucket`."""
        if given.get("config"):
            wrapped = json.loads(given["config"])
            self.config |= {key: value.get("value", value) for key, value in wrapped.items()}
        if given.get("summaryMetrics"):
            self.summary = json.loads(given["summaryMetrics"])
        self.name = given.get("displayName") or self.name or f"run-{self.number}"
        self.group = given.get("groupName") or self.group
        self.job_type = given.get("jobType") or self.job_type
        self.notes = given.get("notes") or self.notes
        self.tags = self.tags if given.get("tags") is None else given["tags"]
        self.state = given.get("state") or "running"
        self.heartbeat_at = now()

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
        self.heartbeat_at = now()
        self.preempting |= bool(body.get("preempting"))
        if body.get("complete"):
            self.exit_code = body.get("exitcode", 0)
            self.state = "finished" if self.exit_code == 0 else "failed"
            if self.stop_requested or self.exit_code == EXIT_INTERRUPTED:
                self.state = "killed"
            if self.preempting and self.exit_code:  # a sweep hands it out again
                self.state = "preempted"
        return {"stopped": self.stop_requested, "exitcode": self.exit_code, "limits": {}}

    def node(self, base_url: str) -> dict[str, Any]:
        """What a query may ask of the run."""
        last_step = max(self.rows, default=-1)
        ends = {"finished": "finished", "failed": "failed", "killed": "killed"}
        return {
            "__typename": "Run",
            "id": self.storage_id,
            "name": self.id,
            "displayName": self.name,
            "projectId": self.project.number,
            "project": lambda _: self.project.node(base_url),
            "sweepName": self.sweep.id if self.sweep else None,
            "state": self.state,
            "config": json.dumps({key: {"value": value, "desc": None} for key, value in self.config.items()}),
            "summaryMetrics": json.dumps(self.summary),
            "systemMetrics": "{}",
            "group": self.group,
            "groupName": self.group,
            "jobType": self.job_type,
            "notes": self.notes,
            "tags": self.tags,
            "readOnly": False,
            "createdAt": self.created_at,
            "heartbeatAt": self.heartbeat_at,
            "user": {"id": "user-1", "name": "tester", "username": "tester"},
            "exitcode": self.exit_code,
            "stopped": self.stop_requested,
            "shouldStop": self.stop_requested,
            "running": self.state == "running",
            "failed": ends.get(self.state) == "failed",
            "historyLineCount": len(self.history),
            "eventsLineCount": len(self.events),
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]),
            "eventsTail": json.dumps(self.events[-1:]),
            "wandbConfig": json.dumps({"t": {}}),
            "historyKeys": {"lastStep": last_step, "sets": [], "keys": {}},
            "history": self._rows,
            "events": self.events,
            "sampledHistory": lambda a: [self._sample(json.loads(spec)) for spec in _listed(a["specs"])],
            "fileCount": len(self.files),
            "files": lambda a: self._file_nodes(a, base_url),
        }

    def _rows(self, arguments: Mapping[str, Any]) -> list[str]:
        low, high = arguments.get("minStep") or 0, arguments.get("maxStep")
        rows = [row for row in self.history if row["_step"] >= low and (high is None or row["_step"] < high)]
        return [json.dumps(row) for row in rows[: arguments.get("samples")]]

    def _sample(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        keys = spec.get("keys", [])
        return [{key: row[key] for key in keys} for row in self.history if all(key in row for key in keys)]

    def _file_nodes(self, arguments: Mapping[str, Any], base_url: str) -> dict[str, Any]:
        names = arguments.get("names") or (list(self.files) if not arguments.get("upload") else [])
        nodes = []
        for name in names:
            if name in self.files or arguments.get("upload"):
                url = f"{base_url}/storage/{self.storage_id}/{name}"
                size = len(self.files.get(name, b""))
                nodes.append({"id": name, "name": name, "url": url, "directUrl": url, "sizeBytes": size})
        return connection(nodes, arguments) | {"uploadHeaders": []}


@dataclass
class Project:
    """Runs, sweeps and saved views under one name."""

    entity: str
    name: str
    number: int
    runs: dict[str, Run] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, run_id: str) -> Run:
        """The run of that id, made if need be."""
        return self.runs.setdefault(run_id, Run(run_id, self, number=1000 * self.number + len(self.runs)))

    def node(self, base_url: str) -> dict[str, Any]:
        """What a query may ask of the project."""

        def runs(arguments: Mapping[str, Any]) -> list[Run]:
            ordered = sorted(self.runs.values(), key=lambda r: r.created_at)
            if str(arguments.get("order") or "").startswith("-"):
                ordered.reverse()
            return [r for r in ordered if matches(r, json.loads(arguments.get("filters") or "{}"))]

        def one_run(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            found = self.runs.get(arguments["name"])
            return found.node(base_url) if found else None

        def one_sweep(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            found = self.sweeps.get(arguments.get("sweepName") or arguments.get("name") or "")
            return found.node(base_url) if found else None

        def views(arguments: Mapping[str, Any]) -> dict[str, Any]:
            kind, name = arguments.get("viewType"), arguments.get("viewName")
            chosen = [v for v in self.views.values() if v["type"] == kind and name in (None, v["name"])]
            return connection(chosen, arguments)

        return {
            "__typename": "Project",
            "isBenchmark": False,
            "id": f"project-{self.number}",
            "internalId": str(self.number),
            "name": self.name,
            "entityName": self.entity,
            "entity": {"id": "entity-1", "name": self.entity},
            "readOnly": False,
            "createdAt": "2026-01-01T00:00:00Z",
            "runCount": lambda a: len(runs(a)),
            "runs": lambda a: connection([r.node(base_url) for r in runs(a)], a),
            "run": one_run,
            "bucket": one_run,
            "sweep": one_sweep,
            "totalSweeps": len(self.sweeps),
            "sweeps": lambda a: connection([s.node(base_url) for s in self.sweeps.values()], a),
            "allViews": views,
        }

    def save_view(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a workspace or report, by `id` where it has one."""
        made = f"View:{1000 * self.number + len(self.views)}"
        view_id = (
            given.get("id") or b64encode(made.encode()).decode()
        )  # the library decodes it from a report's URL
        inserted = view_id not in self.views
        view = self.views.setdefault(
            view_id, {"id": view_id, "project": {"name": self.name, "entityName": self.entity}}
        )
        view |= {key: value for key, value in given.items() if key != "id" and value is not None}
        view |= {"updatedAt": now()}
        return {"view": view, "inserted": inserted}


def _listed(given: str | list[str]) -> list[str]:
    """GraphQL takes one value where a list is wanted, as W&B's agent gives it."""
    return [given] if isinstance(given, str) else given


def matches(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Whether the run passes a filter of W&B's: $and, $or, and equality of name, state, group or sweep."""
    for key, value in wanted.items():
        if key == "$and":
            ok = all(matches(run, part) for part in value)
        elif key == "$or":
            ok = not value or any(matches(run, part) for part in value)
        else:
            seen = {
                "name": run.id,
                "display_name": run.name,
                "state": run.state,
                "group": run.group,
                "sweep": run.sweep.id if run.sweep else None,
            }.get(key)
            allowed = value["$in"] if isinstance(value, dict) and "$in" in value else [value]
            ok = seen in allowed
        if not ok:
            return False
    return True
