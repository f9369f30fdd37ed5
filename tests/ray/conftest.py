"""Real clusters of Ray on this machine: small, without a dashboard, and gone after their tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"  # five seconds, where others work too

ray = pytest.importorskip("ray", reason="`make .venv/ray` installs it")

STORE = 150 * 2**20
IMPATIENT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A cluster whose nodes are processes of this machine, one CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "_system_config": IMPATIENT}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = None

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> None:
        """Add a second node."""
        self.second = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)
        self.cluster.wait_for_nodes()

    def kill_second(self) -> None:
        """Kill the second node and all of its processes, with no farewell."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster of one node, which the engine joins by its address."""
    made = Nodes()
    monkeypatch.setenv("REDHOST_RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.cluster.shutdown()


_STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember how the tests ended."""
    session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave at once: where clusters came and died, Ray's threads may crash a late interpreter.

    A run has ended in a segmentation fault after every test had passed. What users run
    joins one cluster and ends as ever: `test_the_command_runs_on_ray_as_on_this_machine` sees it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(_STATUS, 1))
