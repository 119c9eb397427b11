"""The ServingRuntime of the how-to: KServe's own models take every word of it, and its command serves."""

from __future__ import annotations

import importlib
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Running

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"


def documents() -> dict[str, Any]:
    """The YAML of the page, by kind."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    return {one["kind"]: one for one in found}


def named(kind: str) -> Any:
    """A class of KServe's or Kubernetes' models."""
    for package in ("kserve.models", "kubernetes.client.models"):
        found = getattr(importlib.import_module(package), kind, None)
        if found is not None:
            return found
    raise LookupError(kind)


def problems(given: Any, kind: str, where: str) -> Iterator[str]:
    """What of a value is not of a type of the schema, as these models name types: list[V1Container], dict(str, str)."""
    if inner := re.fullmatch(r"[lL]ist\[(.+)\]", kind):
        if not isinstance(given, list):
            yield f"{where} is no list"
        for index, one in enumerate(given if isinstance(given, list) else ()):
            yield from problems(one, inner[1], f"{where}[{index}]")
    elif inner := re.fullmatch(r"(?:dict\(|Dict\[)(\w+), (.+)[)\]]", kind):
        for key, one in given.items():
            yield from problems(one, inner[2], f"{where}.{key}")
    elif kind in ("str", "int", "bool", "float"):
        if type(given).__name__ != kind:
            yield f"{where} is a {type(given).__name__}, not a {kind}"
    elif kind != "object":
        model = named(kind)
        fields = {key: name for name, key in model.attribute_map.items()}
        for key, one in given.items():
            if key not in fields:
                yield f"{where} has no field {key}"
            else:
                yield from problems(one, model.openapi_types[fields[key]], f"{where}.{key}")
        try:
            model(**{fields[key]: one for key, one in given.items() if key in fields})
        except ValueError as error:  # a field that must be there is not
            yield f"{where}: {error}"


@pytest.fixture(scope="module")
def schema() -> None:
    pytest.importorskip("kserve", reason="kserve is not installed: pip install kserve")


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize(
    ("kind", "model"), [("ServingRuntime", "V1alpha1ServingRuntime"), ("InferenceService", "V1beta1InferenceService")]
)
def test_the_schema_takes_it(kind: str, model: str) -> None:
    document = documents()[kind]
    metadata, rest = document.pop("metadata"), document
    assert set(metadata) == {"name"}
    assert list(problems(rest, model, kind)) == []


@pytest.mark.usefixtures("schema")
def test_what_is_wrong_is_found() -> None:
    document = documents()["ServingRuntime"]
    document.pop("metadata")
    document["spec"]["protocolVersion"] = ["v2"]
    document["spec"]["multiModel"] = "false"
    del document["spec"]["containers"][0]["name"]
    told = " ".join(problems(document, "V1alpha1ServingRuntime", ""))
    assert "no field protocolVersion" in told and "multiModel is a str" in told and "containers[0]:" in told


def test_its_command_serves(serve: Callable[..., Running], artifacts: Path) -> None:
    container = documents()["ServingRuntime"]["spec"]["containers"][0]
    command, *arguments = container["args"]
    assert command == "serve"
    arguments[arguments.index("/mnt/models")] = str(artifacts)
    arguments[arguments.index("--host") + 1] = "127.0.0.1"
    for port in ("--port", "--grpc-port"):  # free ones are asked for behind these
        at = arguments.index(port)
        del arguments[at : at + 2]
    running = serve(*arguments)
    for probe in ("readinessProbe", "livenessProbe"):
        with urllib.request.urlopen(f"http://{running.http}{container[probe]['httpGet']['path']}") as answer:
            assert answer.status == 200
    assert {container[p]["httpGet"]["port"] for p in ("readinessProbe", "livenessProbe")} == {8000}
    assert running.end() == 0
