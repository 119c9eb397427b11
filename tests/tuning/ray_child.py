"""In a network namespace of its own: tuning on a Ray cluster of a head and two machines, of which one is killed.

Prints one JSON object for each part.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_DEDUP_LOGS": "0"}

import ray
from ray.cluster_utils import Cluster

from tests.tuning import planted
from tvmopt.errors import TuningError
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.ray import RayRunner
from tvmopt.tuning.search import Budget, State, Tuner
from tvmopt.tuning.store import Store

LOCAL = "127.0.0.1"
SIZE = {"object_store_memory": 80 << 20, "node_ip_address": LOCAL}
EFFORT = Effort(seconds=0.02, rounds=10, flush="no")


class Killer:
    """Kills a machine when the second measurement arrives."""

    def __init__(self, cluster: Any, victim: Any) -> None:
        self.cluster, self.victim, self.count = cluster, victim, 0

    def started(self, tuner: Tuner) -> None: ...
    def judged(self, *args: object) -> None: ...
    def finished(self, tuner: Tuner) -> None: ...

    def measured(self, tuner: Tuner, state: State, record: Any) -> None:
        self.count += 1
        if self.count == 2:
            self.cluster.remove_node(self.victim, allow_graceful=False)  # SIGKILL


def tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def killed(cluster: Any, victim: Any, folder: Path) -> None:
    """A machine is killed while its candidates are measured."""
    said: list[str] = []
    options = {"preload": "tests.tuning.planted_local", "run_timeout": 10.0, "build_timeout": 10.0}
    runner = RayRunner.connect("cpu", cluster.address, tell=said.append, options=options, effort=EFFORT)
    machines = [*runner.machines]
    task = planted.task(runner.machine)
    with Store(folder / "s.db") as store:
        tuner = Tuner([task], runner, store, Budget(9), batch=4, observer=Killer(cluster, victim))
        tuner.run()
    with Store(folder / "s.db") as store:  # opened again: what a later run finds
        records = {r.candidate.knobs["mode"]: r.status for r in store.records()}
    tell(part="killed", machines=machines, records=records, said=said, host=runner.host, left=[*runner.machines])
    runner.close()


def joined(cluster: Any, folder: Path) -> None:
    """A machine of another kind joins: it is refused by name, at the start and later."""
    runner = RayRunner.connect("cpu", cluster.address, effort=EFFORT)
    node = cluster.add_node(num_cpus=2, **SIZE)
    while len([n for n in ray.nodes() if n["Alive"]]) < 3:
        time.sleep(0.2)
    runner.join()
    refused, machines = dict(runner.refused), [*runner.machines]
    runner.close()
    try:
        RayRunner.connect("cpu", cluster.address)
        error = ""
    except TuningError as caught:
        error = str(caught)
    cluster.remove_node(node)
    tell(part="joined", refused=refused, machines=machines, error=error)


def tuned(address: str, folder: Path) -> None:
    """A whole model by the command line."""
    from tvmopt.cli import main

    store = folder / "m.db"
    arguments = [str(folder / "model.onnx"), "--ray", address, "--trials", "6", "--store", str(store), "--json"]
    with redirect_stdout(io.StringIO()) as out:
        code = main(["tune", *arguments])
    with Store(store) as opened:
        tell(part="tuned", code=code, trials=json.loads(out.getvalue())["trials"], records=len(opened.records()))


def main() -> None:
    folder = Path(sys.argv[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SIZE})
    nodes = [cluster.add_node(num_cpus=1, **SIZE) for _ in range(2)]
    ray.init(address=cluster.address, _node_ip_address=LOCAL, log_to_driver=False)
    killed(cluster, nodes[1], folder)
    joined(cluster, folder)
    tuned(cluster.address, folder)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
