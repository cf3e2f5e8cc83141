"""What several test files share: where the checkout is, the real data, a quick run."""

import os
import random
import resource
import shutil
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.outside import Outside
from support.quick import ROOT
from support.slurm import Slurm

from ampcompare.wandb_client.client import end_service

# No example is judged by the clock, and none is kept in the working directory. The fixtures that properties
# share are folders that each example writes anew.
settings.register_profile(
    "ampcompare",
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ampcompare")

QUICK_SECONDS = 1.0  # of CPU time; a quick test that takes longer is reported


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reaches a W&B account, reads the user's settings, or leaves something to the next test.

    W&B's client does not list the installed packages, which takes half of its time.
    """
    os.environ.pop("WANDB_SERVICE", None)  # not put back behind the test, which may have ended that service
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    empty = tmp_path_factory.getbasetemp() / "no-account"
    empty.mkdir(exist_ok=True)
    os.environ["WANDB_X_SAVE_REQUIREMENTS"] = "false"
    os.environ["NETRC"] = str(empty / "netrc")
    os.environ["WANDB_CONFIG_DIR"] = os.environ["WANDB_CACHE_DIR"] = str(empty)
    yield
    monkeypatch.undo()
    if client := sys.modules.get("wandb"):
        client.run = None  # a run whose service has died in a test is still open for W&B's client
        end_service()  # the client keeps the settings of its first use
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _fixed_random_numbers() -> None:
    """Each test has the same random numbers at each time, such as those of a network that it builds."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache_and_sources(tmp_path_factory: pytest.TempPathFactory):
    """Images are cached in a folder of this test session; child processes, wherever they start, run what lies
    here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMPCOMPARE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        yield


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    """Return what replaces parts of the outside world for this test."""
    return Outside(monkeypatch)


@pytest.fixture
def wandb_server():
    """A stand-in for W&B's server, on loopback. A query that it broke on fails the test."""
    from support.wandb_server import Server

    server = Server()
    yield server
    server.close()
    assert not server.errors


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[Slurm]:
    """A real Slurm. Where it is not installed the test skips; in CI it must be there."""
    if shutil.which("slurmctld") is None:
        reason = "no Slurm: install the packages slurm-wlm and munge"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with Slurm() as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_daemons: Slurm) -> Iterator[Slurm]:
    """Return a Slurm without jobs."""
    yield slurm_daemons
    slurm_daemons.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, help="shuffle the tests with this seed: none depends on the order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    if (seed := config.getoption("--order")) is not None:
        random.Random(seed).shuffle(items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):  # not `keywords`, where the name of the checkout's folder is, too
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    began = _cpu_seconds()
    result = yield
    if not item.get_closest_marker("slow"):
        item.user_properties.append(("cpu_seconds", _cpu_seconds() - began))
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the quick tests that take long, without failing any: other work on the machine counts, too."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    seconds = {
        report.nodeid: dict(report.user_properties).get("cpu_seconds", 0.0)
        for report in reports
        if report.when == "call"
    }
    found = sorted(((used, name) for name, used in seconds.items() if used > QUICK_SECONDS), reverse=True)
    if found:
        terminalreporter.section(f"quick tests above {QUICK_SECONDS:g} s of CPU time")
        for used, name in found:
            terminalreporter.line(f"{used:6.1f} s  {name}")


sys.path.insert(0, str(ROOT))  # run_experiment.py
