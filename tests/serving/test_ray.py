"""Models on a Ray cluster: what is asked for wrongly, and a machine that is killed under load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.alone import alone
from tvmopt.cli.serve import parse_replicas
from tvmopt.errors import InputError, MissingDependency
from tvmopt.serving import ray as on_ray
from tvmopt.serving.batcher import Limits


def needs_ray() -> None:
    try:
        on_ray.check_ray()
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("text", ["", "0", "3..1", "1..", "x", "-1", "1..99999999"])
def test_wrong_replicas(text: str) -> None:
    with pytest.raises(InputError, match="--replicas"):
        parse_replicas(text)


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch, artifacts: Path) -> None:
    for name in on_ray.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'tvmopt[serve]'")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match="Ray Serve"):
        on_ray.application([artifacts])


def test_a_replica_takes_the_cores_of_its_threads(artifacts: Path, tmp_path: Path) -> None:
    needs_ray()
    for replicas in (0, (3, 1), (0, 2)):
        with pytest.raises(InputError, match="number of replicas"):
            on_ray.application([artifacts], replicas=replicas)
    with pytest.raises(InputError, match="no such file"):
        on_ray.application([tmp_path / "none.tvmopt"])

    def made(**given: Any) -> Any:
        return on_ray.application([artifacts], **given)._bound_deployment

    assert made().ray_actor_options["num_cpus"] == 1  # the files were compiled for one thread
    assert made(limits=Limits(instances=2, threads=3)).ray_actor_options["num_cpus"] == 6
    scaled = made(replicas=(1, 8))._deployment_config.autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas) == (1, 8)


def test_a_killed_machine_loses_no_request_that_is_retried(artifacts: Path) -> None:
    needs_ray()
    with alone(sys.executable, str(Path(__file__).with_name("cluster_child.py")), str(artifacts)) as child:
        told, errors = child.communicate(timeout=600)
    lines = [line for line in told.splitlines() if line.startswith('{"requests"')]
    assert lines, errors[-3000:]
    found = json.loads(lines[0])
    assert found["requests"] > found["before"] + 100
    assert (found["wrong"], found["lost"], found["handle"], found["replicas"]) == (0, 0, True, ["RUNNING"] * 2)


def test_sigterm_takes_the_application_away(artifacts: Path) -> None:
    needs_ray()
    with alone(sys.executable, "-m", "tvmopt", "serve", str(artifacts), "--ray", "local", "--json") as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "}\n":
                break
        child.terminate()
        _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors[-3000:]
    assert errors.splitlines()[-1] == "ended"
