"""What `make` would do, without doing it."""

import subprocess
from pathlib import Path

import pytest
from support.quick import ROOT

TEST_PACKAGES = "'.[test]'"


@pytest.mark.parametrize(
    ("target", "has_test_packages"),
    [
        ("demo", False),
        ("test", True),
    ],
)
def test_only_tests_and_checks_install_the_packages_of_the_tests(
    target: str, has_test_packages: bool, tmp_path: Path
):
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "install" in planned
    assert (TEST_PACKAGES in planned) is has_test_packages
    assert not any(tmp_path.iterdir())
