"""Soak test of sweeps on Ray: nodes, runs and the driver are killed, and every point must still finish once.

    python benchmarks/ray_soak.py                    # two minutes of killing, 100 points
    python benchmarks/ray_soak.py --minutes 1 --points 30

As `sweep_soak.py`, on a cluster of two nodes of this machine. The second node gets SIGKILL twice and is
replaced, the driver gets SIGKILL once and is started again by the same command, and every few seconds a run
gets SIGKILL or SIGTERM. Exit code 1 and a line for each thing that is not so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.cluster_utils import Cluster
from sweep_soak import ROOT, Soak

CPUS = 4  # runs at a time, of each node
EVENTS = ("node", "driver", "node")  # killed in this order, at equal distances


class RaySoak(Soak):
    """A soak test on a cluster of Ray.

    Args:
        folder: For the sweep's output and the driver's screens.
        points: Number of points.
        seconds: Duration of a run.
        seed: Of the random choices.
    """

    def __init__(self, folder: Path, points: int, seconds: float, seed: int) -> None:
        super().__init__(folder, points, 2 * CPUS, seconds, seed)
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": CPUS, "include_dashboard": False}
        )
        self.node = self.cluster.add_node(num_cpus=CPUS)

    def start(self) -> None:
        """Start the driver, by the same command each time."""
        self.screens.append(self.folder / f"screen-{len(self.screens)}.log")
        words = ["sweep", str(self.file), "--cluster=ray", f"output_dir={self.out}"]
        source = {"PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": self.cluster.address}
        with self.screens[-1].open("wb") as screen:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "ampcompare", *words],
                stdout=screen,
                stderr=subprocess.STDOUT,
                env={**os.environ, **source},
            )

    def kill_node(self) -> None:
        """SIGKILL everything of the second node, and add another one."""
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.strikes["node killed"] += 1
        self.node = self.cluster.add_node(num_cpus=CPUS)


def main(words: list[str] | None = None) -> int:
    """Run the soak test; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=2.0, help="of killing; to the end it takes longer")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="for records and screens; by default a temporary one")
    given = parser.parse_args(words)
    seconds = given.minutes * 60
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="ampcompare-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The runs take about as long as the killing, with all nodes busy.
    soak = RaySoak(folder, given.points, 0.7 * seconds * 2 * CPUS / given.points, given.seed)
    soak.start()
    assert soak.driver
    while not [*soak.runs()] and soak.driver.poll() is None:
        time.sleep(0.2)
    began = time.monotonic()
    times = [began + seconds * (number + 1) / (len(EVENTS) + 1) for number in range(len(EVENTS))]
    left = [*zip(times, EVENTS, strict=True)]
    try:
        while time.monotonic() - began < seconds and soak.driver.poll() is None:
            time.sleep(soak.dice.expovariate(1 / 4.0))
            soak.strike_run()
            if left and time.monotonic() > left[0][0]:
                _, what = left.pop(0)
                soak.kill_node() if what == "node" else soak.kill_driver()
        soak.driver.wait()
        problems = [*soak.problems(), *(f"no {what} was killed at its time" for _, what in left)]
    finally:
        soak.driver.kill()
        soak.cluster.shutdown()
    strikes = ", ".join(f"{count} x {kind}" for kind, count in sorted(soak.strikes.items()))
    print(f"{given.points} points, 2 nodes, {time.monotonic() - began:.0f} s; {strikes}")
    good = "every point finished once, counted once; nothing is left running"
    print("\n".join(problems) if problems else good)
    print(f"in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
