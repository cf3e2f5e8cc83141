"""The server of --watch: this machine only, this report only, newer pages as runs go on."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from support.fakes import make
from support.log_writer import frame
from support.offline_runs import plan, write_runs
from support.wandb_server.clients import wait_until

from ampcompare.report import analyse_runs
from ampcompare.report.outputs import write_report
from ampcompare.report.page.watch import ReportServer


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "report"
    (folder / "charts").mkdir(parents=True)
    (folder / "index.html").write_text("the page")
    (folder / "charts" / "a.png").write_bytes(b"png")
    (folder / "secret.txt").write_text("secret")
    (folder / ".hidden").write_text("secret")
    (tmp_path / "outside.json").write_text("secret")
    (tmp_path / "outside.png").write_text("secret")
    (folder / "comparison.json").symlink_to(tmp_path / "outside.json")
    with ReportServer(folder, 0) as server:
        server.build = "b1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.getheaders())


CONTENT_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "comparison.csv": "text/csv; charset=utf-8",
    "comparison.md": "text/markdown; charset=utf-8",
    "comparison.json": "application/json",
    "charts/train-loss.png": "image/png",
    "charts/train-loss.svg": "image/svg+xml",
}


@pytest.mark.slow
def test_everything_a_report_is_made_of_is_served_with_its_content_type(server):
    (server.folder / "comparison.json").unlink()
    written = write_report(analyse_runs([make("none"), make("native")]), server.folder)
    paths = {path.relative_to(server.folder).as_posix() for path in written}
    assert set(CONTENT_TYPES) <= paths
    for path in paths:
        assert ask(server, f"/{path}")[:2] == (200, (server.folder / path).read_bytes()), path
    for path, kind in CONTENT_TYPES.items():
        assert ask(server, f"/{path}")[2]["Content-Type"] == kind


def test_page_pictures_and_version_are_served(server):
    status, content, headers = ask(server, "/")
    assert (status, content) == (200, b"the page")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Type"].startswith("text/html")
    assert ask(server, "/charts/a.png")[:2] == (200, b"png")
    assert ask(server, "/build")[:2] == (200, b"b1")
    assert ask(server, "/", "HEAD")[:2] == (200, b"")


def test_nothing_else_is_served(server, subtests: pytest.Subtests):
    for path in [
        "/secret.txt",
        "/.hidden",
        "/comparison.json",  # a link that leads out of the report
        "/../outside.json",
        "/..%2foutside.json",
        "/charts/../secret.txt",
        "/charts/",
        "//etc/passwd",
        "/charts/a.png/../../secret.txt",
        "/index.html%00.txt",
        "/comparison%2ejson",
        "/comparison.json/",
        "/charts/%2e%2e/secret.txt",
        "/charts/..%5c..%5coutside.png",
        "/charts/../../outside.png",
        "http://127.0.0.1/secret.txt",
    ]:
        with subtests.test(path=path):
            status, content, _ = ask(server, path)
            assert status == 404
            assert b"secret" not in content


def test_only_reading_is_possible_and_only_from_this_machine_under_its_name(server):
    assert server.server_address[0] == "127.0.0.1"
    assert {ask(server, "/", method)[0] for method in ("POST", "PUT", "DELETE")} == {501}
    hosts = ("evil.example", "evil.example:80", "127.0.0.1")
    assert {ask(server, "/", host=host)[0] for host in hosts} == {403}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def watching(tmp_path):
    runs, out, port = tmp_path / "runs", tmp_path / "out", free_port()
    write_runs(runs, [plan("none", source="synthetic")])
    words = ["report", str(runs), "--out", str(out), "--watch", "--port", str(port), "--format", "html,json"]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "ampcompare.cli", *words], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(b"watching: "):
                break
        yield process, runs, out, f"http://127.0.0.1:{port}/"
        if process.poll() is None:
            process.kill()


@pytest.mark.slow
@pytest.mark.browser
def test_open_page_refreshes_itself_and_keeps_what_was_picked(watching, browser):
    process, runs, out, url = watching
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    page.locator("html[data-charts=drawn]").wait_for(timeout=0)
    assert page.locator("#runs-table tbody tr").count() == 1
    page.locator("#runs-filter").fill("resnet50")
    write_runs(runs, [plan("native", source="synthetic")])
    page.locator("#runs-table tbody tr").nth(1).wait_for(timeout=0)
    page.locator("html[data-charts=drawn]").wait_for(timeout=0)
    assert page.locator("#runs-filter").input_value() == "resnet50"
    page.locator("#columns summary").click()
    page.get_by_role("checkbox", name="skipped steps").uncheck()
    write_runs(runs, [plan("apex_o1", source="synthetic")])
    page.locator("#runs-table tbody tr").nth(2).wait_for(timeout=0)
    page.locator("html[data-charts=drawn]").wait_for(timeout=0)
    assert not page.locator("#backends-table th.c-skipped").is_visible()
    assert said == []
    process.send_signal(
        signal.SIGTERM
    )  # not SIGINT: a program started in the background may have to ignore it
    assert process.wait() == 0
    page.close()
    last = (out / "index.html").read_text()
    assert "data-build" not in last.split("<style>")[0]
    assert "connect-src" not in last


@pytest.mark.slow
def test_broken_record_while_watching_leaves_the_last_page(watching):
    process, runs, out, _ = watching
    before = (out / "index.html").stat().st_mtime_ns
    folder = runs / "wandb" / "offline-run-20260101_000000-torn"
    folder.mkdir()
    (folder / "run-torn.wandb").write_bytes(frame([b"\xff" * 40])[:30])
    wait_until(lambda: (out / "index.html").stat().st_mtime_ns != before)
    assert "torn" in (out / "index.html").read_text()
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 0
