"""W&B's client beside its record: the end of its service, what its server says no with."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import wandb
from support.outside import Outside
from wandb.errors import CommError
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from ampcompare.wandb_client.client import api_reason, end_service

PAGE = "<!DOCTYPE html>\n<html><title>Error</title></html>"


def test_the_wait_for_a_service_that_does_not_end_is_limited(outside: Outside):
    let_go = threading.Event()
    outside.replace(wandb, "teardown", lambda: let_go.wait())
    assert end_service(0.2) is False  # True, had it waited for the end
    let_go.set()
    assert end_service(60) is True


def failed(said: str, status: int) -> WandbApiFailedError:
    problem = WandbApiFailedError(said)
    problem.response = SimpleNamespace(http_status=status)  # type: ignore[assignment]
    return problem


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (CommError("Could not find project a < b"), "Could not find project a < b"),
        (failed(PAGE, 502), "HTTP 502 Bad Gateway"),
        (failed(PAGE, 520), "HTTP 520"),  # of no standard
        (failed(f"Failed to verify: {PAGE}", 403), "Failed to verify: HTTP 403 Forbidden"),
        (failed('returned error 404: {"data": null}', 0), "returned error 404"),
        (CommError(PAGE), "the answer does not come from W&B"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_html_page_instead_of_an_answer_is_reported_by_its_http_status(problem: Exception, why: str):
    assert api_reason(problem) == why


def test_the_http_status_comes_from_the_cause_of_the_error():
    problem = CommError(PAGE)
    problem.__cause__ = failed(PAGE, 503)
    assert api_reason(problem) == "HTTP 503 Service Unavailable"


def test_a_list_in_a_summary_loads_no_pandas_and_a_table_is_still_known():
    code = """
import sys
from ampcompare.wandb_client.client import skip_pandas_import
skip_pandas_import()
import wandb.util
assert not wandb.util.is_pandas_data_frame([None])
assert "pandas" not in sys.modules
import pandas
assert wandb.util.is_pandas_data_frame(pandas.DataFrame({"a": [1]}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
