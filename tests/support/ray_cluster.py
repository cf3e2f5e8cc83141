"""A cluster of Ray on this machine."""

from collections.abc import Iterator
from typing import Any

import pytest

NODE = {"num_cpus": 1, "include_dashboard": False}


def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start two nodes for one run each, as the cluster of RAY_ADDRESS."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()
