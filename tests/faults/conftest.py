"""Runs that are killed for real."""

from __future__ import annotations

import pytest
from support.zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Zygote:
    empty = tmp_path_factory.mktemp("no-account")
    return Zygote(NETRC=str(empty / "netrc"), WANDB_CONFIG_DIR=str(empty), WANDB_CACHE_DIR=str(empty))
