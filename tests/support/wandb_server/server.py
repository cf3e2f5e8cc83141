"""The server on loopback: HTTP in front of the store, and the ways in which it can fail."""

import gzip
import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from support.wandb_server.graph import answer, connection
from support.wandb_server.store import Project, Run, Sweep

ENTITY = "tester"
API_KEY = "0123456789abcdef0123456789abcdef01234567"  # 40 characters, the form that the client asks for

TROUBLES = ("die", "hang", "fail")  # methods of a server

Given = Mapping[str, Any]


class Server:
    """Starts on a free port of 127.0.0.1. `die`, `hang`, `fail` and `come_back` make trouble and end it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.projects: dict[tuple[str, str], Project] = {}
        self.errors: list[str] = []  # queries that this server broke on
        self.status = 200
        self.before_trouble = 0  # requests that are still answered
        self.calm = threading.Event()  # cleared while requests hang
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
        self.calm.clear()

    def fail(self, status: int = 500, after: int = 0) -> None:
        """Answer every request with this status; `after` so many more."""
        self.status, self.before_trouble = status, after

    def come_back(self) -> None:
        """Answer again, with all that was known before."""
        self.status = 200
        self.calm.set()
        if self._http is None:
            handler = type("BoundHandler", (Handler,), {"state": self})
            self._http = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
            self._http.daemon_threads = True
            self._port = self._http.server_address[1]
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End for good; what hangs is let go."""
        self.calm.set()
        self.die()

    # What a test looks at and does

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables for a client that may connect to this server only."""
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
            return {name: sweep for p in self.projects.values() for name, sweep in p.sweeps.items()}

    def stop_run(self, run_id: str) -> None:
        """Ask a run to stop, as a user or hyperband does: its agent is told, and so is its client."""
        self.runs[run_id].stop_requested = True

    def project(self, entity: str | None, name: str | None) -> Project:
        """Return the project; it is created if needed."""
        key = (entity or ENTITY, name or "uncategorized")
        return self.projects.setdefault(key, Project(*key))

    # Requests

    def graphql(self, request: Given) -> dict[str, Any]:
        try:
            return {"data": answer(request, {"query": self._queries(), "mutation": self._mutations()})}
        except Exception as problem:  # the client retries what it gets no answer to, for minutes
            self.errors.append(f"{type(problem).__name__}: {problem} in {request['query']}")
            return {"data": None, "errors": [{"message": self.errors[-1]}]}

    def _queries(self) -> dict[str, Any]:
        def project(given: Given) -> dict[str, Any] | None:
            found = self.projects.get((given.get("entityName") or ENTITY, given.get("name") or ""))
            return found.node(self.url) if found else None

        def projects(given: Given) -> dict[str, Any]:
            found = [p for p in self.projects.values() if p.entity == given["entityName"]]
            return connection([p.node(self.url) for p in found], given)

        views = {key: view for p in self.projects.values() for key, view in p.views.items()}
        teams = connection([{"name": ENTITY}], {})
        return {
            "viewer": {"id": "user-1", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": teams},
            "serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "features": []},
            "project": project,
            "model": project,
            "models": projects,
            "view": lambda given: views.get(given["id"]),
        }

    def _mutations(self) -> dict[str, Callable[[Given], dict[str, Any]]]:
        """By the name of the mutation; each takes its input."""

        def bucket(given: Given) -> dict[str, Any]:
            known = {run.storage_id: run for run in self.runs.values()}
            project = self.project(given.get("entityName"), given.get("modelName"))
            is_new = given.get("id") not in known and given["name"] not in project.runs
            run = known.get(given.get("id") or "") or project.run(given["name"])
            run.update(given)
            run.sweep = self.sweeps.get(given.get("sweep") or "", run.sweep)
            return {"bucket": run.node(self.url), "inserted": is_new}

        def sweep(given: Given) -> dict[str, Any]:
            known = {f"sweep-{name}": found for name, found in self.sweeps.items()} | self.sweeps
            found = known.get(given.get("id") or "")
            if found is None:
                project, name = self.project(given.get("entityName"), given.get("projectName")), len(known)
                found = project.sweeps[f"sweep{name}"] = Sweep(f"sweep{name}", project, given["config"])
            found.state = given.get("state") or found.state
            return {"sweep": found.node(self.url), "configValidationWarnings": []}

        def model(given: Given) -> dict[str, Any]:
            found = self.project(given.get("entityName"), given.get("name")).node(self.url)
            return {"model": found, "project": found, "inserted": True}

        def heartbeat(given: Given) -> dict[str, Any]:
            (sweep,) = (s for s in self.sweeps.values() if given["id"] in s.agents)
            commands = sweep.heartbeat(given["id"], json.loads(given.get("runState") or "{}"))
            return {"agent": {"id": given["id"]}, "commands": json.dumps(commands)}

        def run_files(given: Given) -> dict[str, Any]:
            run = self.project(given.get("entityName"), given["projectName"]).run(given["runName"])
            where = f"{self.url}/storage/{run.storage_id}"
            files = [{"name": name, "uploadUrl": f"{where}/{name}"} for name in given["files"]]
            return {"runID": run.storage_id, "uploadHeaders": [], "files": files}

        def artifact(given: Given) -> dict[str, Any]:
            """Said to be there already: nothing is uploaded; without an answer the client's service dies."""
            latest = {"id": f"artifact-{given.get('digest')}", "versionIndex": 0}
            sequence = {"id": given.get("artifactCollectionName"), "latestArtifact": latest}
            return {"artifact": {**latest, "state": "COMMITTED", "artifactSequence": sequence}}

        actions: dict[str, Callable[[Given], dict[str, Any]]] = {
            "upsertBucket": bucket,
            "upsertSweep": sweep,
            "upsertModel": model,
            "upsertView": lambda g: self.project(g.get("entityName"), g.get("projectName")).save_view(g),
            "createAgent": lambda given: {"agent": {"id": self.sweeps[given["sweep"]].add_agent()}},
            "agentHeartbeat": heartbeat,
            "createRunFiles": run_files,
            "createArtifact": artifact,
        }
        return {name: lambda given, do=do: do(given["input"]) for name, do in actions.items()}  # type: ignore[misc]


class Handler(BaseHTTPRequestHandler):
    """One request: `/graphql`, a run's file stream, its files under `/storage`."""

    state: Server

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        if not self.state.calm.is_set():
            self.state.calm.wait()
            self.close_connection = True
            return
        with self.state.lock:
            status, content = self._found(raw)
        if status != 200:
            self.send_error(status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer

    def _found(self, raw: bytes) -> tuple[int, bytes]:
        """Status and content."""
        state = self.state
        if state.status != 200:
            state.before_trouble -= 1
            if state.before_trouble < 0:
                return state.status, b""
        match unquote(self.path).strip("/").split("/", 2):
            case ["graphql"]:
                return 200, json.dumps(state.graphql(json.loads(raw))).encode()
            case ["files", entity, rest] if rest.endswith("/file_stream"):
                project, run_id, _ = rest.split("/")
                return 200, json.dumps(
                    state.project(entity, project).run(run_id).stream(json.loads(raw))
                ).encode()
            case ["storage", where, name]:
                (run,) = (run for run in state.runs.values() if run.storage_id == where)
                if self.command == "PUT":
                    run.files[name] = raw
                return (200, run.files[name]) if name in run.files else (404, b"")
        return 404, b""

    def log_message(self, *args: Any) -> None:
        """Say nothing."""
