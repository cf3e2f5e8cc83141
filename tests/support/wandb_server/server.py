"""The server on loopback: HTTP in front of the store, and the ways in which it can fail."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.wandb_server.graph import answer, connection
from support.wandb_server.store import Project, Run
from support.wandb_server.sweeps import Sweep

ENTITY = "tester"
API_KEY = "0123456789abcdef0123456789abcdef01234567"  # 40 characters, the form that the client asks for

TROUBLES = ("die", "hang", "fail")  # methods of a server


class Server:
    """Starts on a free port of 127.0.0.1. `die`, `hang`, `fail` and `come_back` make trouble and end it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.projects: dict[tuple[str, str], Project] = {}
        self.errors: list[str] = []  # queries that this server broke on
        self.status = 200
        self.before_trouble = 0  # requests that are still answered
        self._calm = threading.Event()  # cleared while requests hang
        self._calm.set()
        self._port = 0
        self._http: ThreadingHTTPServer | None = None
        self.come_back()

    # Trouble

    def die(self) -> None:
        """Stop listening: connections are refused."""
        if self._http:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def hang(self) -> None:
        """Take requests and never answer them."""
        self._calm.clear()

    def fail(self, status: int = 500, after: int = 0) -> None:
        """Answer every request with this status; `after` so many more."""
        self.status, self.before_trouble = status, after

    def come_back(self) -> None:
        """Answer again, with all that was known before."""
        self.status = 200
        self._calm.set()
        if self._http is None:
            handler = type("BoundHandler", (Handler,), {"server_state": self})
            self._http = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
            self._http.daemon_threads = True
            self._port = self._http.server_address[1]
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End for good; what hangs is let go."""
        self._calm.set()
        self.die()

    # What a test looks at and does

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables for a client that is to meet this server and nothing else."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": API_KEY,
            "WANDB_DIR": str(folder),
            "WANDB_CACHE_DIR": str(folder / "cache"),
            "WANDB_CONFIG_DIR": str(folder / "config"),
            "WANDB_DATA_DIR": str(folder / "data"),
            "WANDB_ERROR_REPORTING": "false",
            "NETRC": str(folder / "netrc"),
        }

    @property
    def runs(self) -> dict[str, Run]:
        """Every run by id."""
        with self.lock:
            return {run.id: run for project in self.projects.values() for run in project.runs.values()}

    @property
    def sweeps(self) -> dict[str, Sweep]:
        """Every sweep by id."""
        with self.lock:
            return {
                found.id: found for project in self.projects.values() for found in project.sweeps.values()
            }

    def stop_run(self, run_id: str) -> None:
        """Ask a run to stop, as a user or hyperband does: its agent is told, and so is its client when it
        asks.
        """
        self.runs[run_id].stop_requested = True

    # Requests

    def project(self, entity: str | None, name: str | None) -> Project:
        """The project, made if need be."""
        key = (entity or ENTITY, name or "uncategorized")
        return self.projects.setdefault(key, Project(*key, number=len(self.projects) + 1))

    def graphql(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"data": answer(request, {"query": self._queries(), "mutation": self._mutations()})}
        except Exception as problem:  # the client retries what it gets no answer to, for minutes
            self.errors.append(f"{type(problem).__name__}: {problem} in {request['query']}")
            return {"data": None, "errors": [{"message": self.errors[-1]}]}

    def _queries(self) -> dict[str, Any]:
        def project(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            found = self.projects.get((arguments.get("entityName") or ENTITY, arguments.get("name") or ""))
            return found.node(self.url) if found else None

        def view(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            return next(
                (p.views[i] for p in self.projects.values() if (i := arguments["id"]) in p.views), None
            )

        teams = connection([{"name": ENTITY}], {})
        return {
            "viewer": {"id": "user-1", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": teams},
            "serverInfo": {
                "cliVersionInfo": {"min_cli_version": "0.0.1", "max_cli_version": "9.9.9"},
                "features": [],
            },
            "project": project,
            "model": project,
            "models": lambda a: connection(
                [p.node(self.url) for (entity, _), p in self.projects.items() if entity == a["entityName"]], a
            ),
            "entity": lambda a: {"id": "entity-1", "name": a["name"], "projects": connection([], {})},
            "view": view,
        }

    def _mutations(self) -> dict[str, Any]:
        def input_to(action: Any) -> Any:
            return lambda arguments: action(arguments["input"])

        actions = (
            self._upsert_bucket,
            self._upsert_sweep,
            self._upsert_view,
            self._upsert_model,
            self._create_agent,
            self._agent_heartbeat,
            self._create_run_files,
            self._stop_run,
            self._create_custom_chart,
            self._create_artifact,
        )
        return {_camel(action.__name__): input_to(action) for action in actions}

    def _upsert_bucket(self, given: Mapping[str, Any]) -> dict[str, Any]:
        run = next((r for r in self.runs.values() if r.storage_id == given.get("id")), None)
        inserted = False
        if run is None:
            project = self.project(given.get("entityName"), given.get("modelName"))
            inserted = given["name"] not in project.runs
            run = project.run(given["name"])
        run.update(given)
        run.sweep = self.sweeps.get(given.get("sweep") or "", run.sweep)
        return {"bucket": run.node(self.url), "inserted": inserted}

    def _upsert_sweep(self, given: Mapping[str, Any]) -> dict[str, Any]:
        sweep = next((s for s in self.sweeps.values() if given.get("id") in (s.id, f"sweep-{s.id}")), None)
        if sweep is None:
            project = self.project(given.get("entityName"), given.get("projectName"))
            sweep_id = f"sweep{len(self.sweeps):03d}"
            sweep = project.sweeps[sweep_id] = Sweep(sweep_id, project, given["config"])
        sweep.state = given.get("state") or sweep.state
        return {"sweep": sweep.node(self.url), "configValidationWarnings": []}

    def _upsert_model(self, given: Mapping[str, Any]) -> dict[str, Any]:
        project = self.project(given.get("entityName"), given.get("name"))
        return {"model": project.node(self.url), "project": project.node(self.url), "inserted": True}

    def _upsert_view(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return self.project(given.get("entityName"), given.get("projectName")).save_view(given)

    def _create_agent(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"agent": {"id": self.sweeps[given["sweep"]].add_agent()}}

    def _agent_heartbeat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        agent = given["id"]
        sweep = next(s for s in self.sweeps.values() if agent in s.agents)
        commands = sweep.heartbeat(agent, json.loads(given.get("runState") or "{}"))
        return {"agent": {"id": agent}, "commands": json.dumps(commands)}

    def _create_run_files(self, given: Mapping[str, Any]) -> dict[str, Any]:
        run = self.project(given.get("entityName"), given["projectName"]).run(given["runName"])
        files = [{"name": n, "uploadUrl": f"{self.url}/storage/{run.storage_id}/{n}"} for n in given["files"]]
        return {"runID": run.storage_id, "uploadHeaders": [], "files": files}

    def _stop_run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        run = next(r for r in self.runs.values() if r.storage_id == given["id"])
        self.stop_run(run.id)
        return {"success": True}

    def _create_artifact(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Said to be there already: nothing is uploaded; without an answer the client's service dies."""
        latest = {"id": f"artifact-{given.get('digest')}", "versionIndex": 0}
        sequence = {"id": given.get("artifactCollectionName"), "latestArtifact": latest}
        return {"artifact": {**latest, "state": "COMMITTED", "artifactSequence": sequence}}

    def _create_custom_chart(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"chart": {"id": f"{given['entity']}/{given['name']}"}}


def _camel(name: str) -> str:
    first, *rest = name.strip("_").split("_")
    return first + "".join(part.capitalize() for part in rest)


class Handler(BaseHTTPRequestHandler):
    """One request: `/graphql`, a run's file stream, its files under `/storage`."""

    server_state: Server

    def do_POST(self) -> None:
        state = self.server_state
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if not self._may_answer():
            return
        with state.lock:
            if path == ["graphql"]:
                self._send(json.dumps(state.graphql(json.loads(raw))).encode())
            elif len(path) == 5 and path[0] == "files" and path[4] == "file_stream":
                run = state.project(path[1], path[2]).run(path[3])
                self._send(json.dumps(run.stream(json.loads(raw))).encode())
            else:
                self.send_error(404)

    def do_PUT(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._may_answer() and (run := self._stored_in()):
            run.files[self._file_name()] = raw
            self._send(b"{}")

    def do_GET(self) -> None:
        if self._may_answer() and (run := self._stored_in()):
            content = run.files.get(self._file_name())
            self.send_error(404) if content is None else self._send(content)

    def _file_name(self) -> str:
        return unquote(urlsplit(self.path).path).split("/", 3)[3]

    def _stored_in(self) -> Run | None:
        parts = urlsplit(self.path).path.split("/")
        runs = {run.storage_id: run for run in self.server_state.runs.values()}
        run = runs.get(parts[2]) if len(parts) > 3 and parts[1] == "storage" else None
        if run is None:
            self.send_error(404)
        return run

    def _may_answer(self) -> bool:
        state = self.server_state
        if not state._calm.is_set():
            state._calm.wait()
            self.close_connection = True
            return False
        with state.lock:
            fails = state.status != 200 and state.before_trouble == 0
            state.before_trouble = max(0, state.before_trouble - 1)
        if fails:
            self.send_error(state.status)
            return False
        return True

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""
