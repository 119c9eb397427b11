"""In a network namespace of its own: a Ray cluster of a head and two machines, of which one is killed under load.

Prints one JSON object: requests, retries, what was wrong, the replicas at the end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_DEDUP_LOGS": "0"}

import numpy as np
import ray
from ray import serve
from ray.cluster_utils import Cluster

import tvmopt
from tvmopt.serving.batcher import Limits
from tvmopt.serving.ray import NAME, application

LOCAL = "127.0.0.1"
URL = f"http://{LOCAL}:8000/v2/models/rows/infer"


def ask(body: bytes) -> bytes | None:
    """The outputs' bytes; None: try again."""
    try:
        with urllib.request.urlopen(urllib.request.Request(URL, body), timeout=60) as answer:
            found = json.load(answer)["outputs"][0]["data"]
            return np.array(found, np.float32).tobytes()
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        pass
    return None


def replicas() -> list[str]:
    """States of the application's replicas."""
    found = serve.status().applications[NAME].deployments[NAME].replica_states
    return [str(getattr(state, "value", state)) for state, count in found.items() for _ in range(count)]


def wait(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it took too long: {serve.status()}"
        time.sleep(0.2)


def main() -> None:
    folder = sys.argv[1]
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    expected = tvmopt.load(f"{folder}/rows.tvmopt")(x).tobytes()
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 8], "data": x.ravel().tolist()}]})
    size = {"object_store_memory": 80 << 20, "node_ip_address": LOCAL}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **size})
    nodes = [cluster.add_node(num_cpus=1, **size) for _ in range(2)]
    ray.init(address=cluster.address, _node_ip_address=LOCAL, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": LOCAL, "port": 8000})
    serve.run(application([folder], Limits(threads=1), replicas=2), name=NAME, route_prefix="/")
    wait(lambda: replicas().count("RUNNING") == 2)

    counts = {"requests": 0, "retried": 0, "wrong": 0, "lost": 0}
    ends = threading.Event()

    def client() -> None:
        while not ends.is_set():
            until = time.monotonic() + 60
            found = ask(body.encode())
            while found is None and time.monotonic() < until:
                counts["retried"] += 1
                time.sleep(0.1)
                found = ask(body.encode())
            counts["requests"] += 1
            counts["lost"] += found is None
            counts["wrong"] += found is not None and found != expected

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    before = counts["requests"]
    cluster.remove_node(nodes[1], allow_graceful=False)  # SIGKILL
    wait(lambda: counts["requests"] > before + 100)
    wait(lambda: replicas().count("RUNNING") < 2)  # else the lost one still counts: Ray notices it after a while
    cluster.add_node(num_cpus=1, **size)
    wait(lambda: replicas().count("RUNNING") == 2)
    ends.set()
    for thread in threads:
        thread.join()
    handle = serve.get_app_handle(NAME)
    by_handle = handle.infer.remote("rows", {"x": x}).result(timeout_s=60)["y"].tobytes()
    print(json.dumps({**counts, "handle": by_handle == expected, "replicas": replicas(), "before": before}))
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
