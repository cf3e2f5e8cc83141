"""--watch: this machine only, this report only, written anew as runs go on."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from support.fakes import plan
from support.wandb_files import frame, write_runs
from support.wandb_server.clients import wait_until

from ampcompare.errors import UserError
from ampcompare.report.watch import file_signature, serve


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "report"
    (folder / "charts").mkdir(parents=True)
    (folder / "index.html").write_text("the page")
    (folder / "charts" / "a.png").write_bytes(b"png")
    (folder / "secret.txt").write_text("secret")
    (folder / ".hidden").write_text("secret")
    (tmp_path / "outside.json").write_text("secret")
    with serve(folder, 0) as server:
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
    return answer.status, content, {name.lower(): value for name, value in answer.getheaders()}


def test_page_and_pictures_are_served_and_never_from_a_browsers_cache(server):
    status, content, headers = ask(server, "/")
    assert (status, content, headers["cache-control"]) == (200, b"the page", "no-store")
    assert headers["content-type"].startswith("text/html")
    assert ask(server, "/charts/a.png")[:2] == (200, b"png")
    assert ask(server, "/", "HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    """/secret.txt /.hidden /../outside.json /..%2foutside.json /charts/../secret.txt /charts/ //etc/passwd
    /charts/%2e%2e/secret.txt /index.html%00.txt http://127.0.0.1/secret.txt""".split(),
)
def test_nothing_else_is_served(server, path):
    status, content, _ = ask(server, path)
    assert status == 404
    assert b"secret" not in content


def test_only_reading_is_possible_and_only_from_this_machine_under_its_name(server):
    assert server.server_address[0] == "127.0.0.1"
    assert {ask(server, "/", method)[0] for method in ("POST", "PUT", "DELETE")} == {501}
    hosts = ("evil.example", "evil.example:80", "127.0.0.1")
    assert {ask(server, "/", host=host)[0] for host in hosts} == {403}


def test_a_port_that_is_taken_is_said_in_one_line(server, tmp_path):
    with pytest.raises(UserError, match=r"--port \d+: cannot be used .*; choose another port, or 0 for"):
        serve(tmp_path, server.server_port)


def test_signature_changes_with_the_records_and_not_with_what_a_report_writes(tmp_path):
    write_runs(tmp_path, [plan("none")])
    before = file_signature([str(tmp_path)])[1:]
    (tmp_path / "comparison.csv").write_text("a,b\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.wandb").write_text("")
    assert file_signature([str(tmp_path)])[1:] == before
    write_runs(tmp_path, [plan("native")])
    assert file_signature([str(tmp_path)])[1:] != before


@pytest.mark.slow
def test_page_is_written_anew_as_runs_come_and_stays_when_a_record_breaks(tmp_path):
    runs, page = tmp_path / "runs", tmp_path / "out" / "index.html"
    write_runs(runs, [plan("none", source="synthetic")])
    words = f"report {runs} --out {page.parent} --watch --port 0 --format html,json".split()
    command = [sys.executable, "-u", "-m", "ampcompare.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        line_with_address = next(line for line in process.stdout if line.startswith(b"watching: "))
        assert re.search(rb"http://127.0.0.1:\d+/", line_with_address)
        write_runs(runs, [plan("native", source="synthetic")])
        wait_until(lambda: "torch.amp" in page.read_text())
        folder = runs / "wandb" / "offline-run-20260101_000000-torn"
        folder.mkdir()
        (folder / "run-torn.wandb").write_bytes(frame([b"\xff" * 40])[:30])
        wait_until(lambda: "torn" in page.read_text())
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)  # a program started in the background may have to ignore SIGINT
        assert process.wait() == 0
