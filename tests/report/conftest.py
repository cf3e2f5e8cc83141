import os
import shutil
from pathlib import Path

import pytest
from support.fakes import plan
from support.wandb_files import write_runs

from ampcompare.cli import main

BACKENDS = ("none", "native", "apex_o1")


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory) -> Path:
    """Return a folder with real offline runs of three backends, one with a hostile name."""
    folder = tmp_path_factory.mktemp("three")
    plans = [
        plan(b, source="synthetic", device="Test CPU", device_type="cpu", group="demo") for b in BACKENDS
    ]
    plans[1]["wandb"]["name"] = "</script><script>alert(1)</script>"
    plans[1]["wandb"]["tags"] = ["<img src=x onerror=alert(1)>"]
    assert len(write_runs(folder, plans)) == 3
    return folder


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium without a network. Skips where there is none, except under CI."""
    path = next(
        (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
    )
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI=true and no Chromium: install it (Debian: apt-get install chromium)")
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as session:
        chromium = session.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def command(capsys):
    """Run `ampcompare` with words; return its exit code, its output and its errors."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run
