"""Renders the chart with Helm's library and holds each object against Kubernetes' schemas, or its CRD's.

Kubernetes' strict schemas come with `kubernetes-validate`. Those of the CRDs lie in `crds/`, see its README.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import helm_python
import jsonschema_rs
import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
CHART: Final = ROOT / "deploy" / "helm" / "sessile"
CRDS: Final = Path(__file__).resolve().parent / "crds"
VERSIONS: Final = ("1.30.0", "1.37.0")  # the oldest that the chart takes, and the newest that is known
BASE: Final = "file:///schemas/"

Manifest = dict[str, Any]


class RefusedValues(Exception):
    """The chart refuses the values; the message is what a person reads."""


def over(under: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values over values, as Helm puts them."""
    merged = dict(under)
    for name, value in values.items():
        below = merged.get(name)
        merged[name] = over(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return merged


def render(values: Mapping[str, Any], *, release: str = "demo", namespace: str = "chat") -> list[Manifest]:
    """The objects, in the order of their files. Raises RefusedValues."""
    helm_python.disable_logging()
    try:
        with helm_python.Chart.load(CHART) as chart:
            texts = chart.render(dict(values), name=release, namespace=namespace)
    except helm_python.HelmError as error:
        raise RefusedValues(str(error)) from error
    found = [
        each for name, text in sorted(texts.items()) if name.endswith(".yaml") for each in yaml.safe_load_all(text)
    ]
    return [each for each in found if each]


@functools.cache
def _schema(kind: str, api_version: str, version: str) -> Any:
    crd = CRDS / f"{kind.lower()}.json"
    if crd.exists():
        return jsonschema_rs.validator_for(json.loads(crd.read_text()))
    group, _, number = api_version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    schema = json.loads((folder / f"{name}.json").read_text())
    return jsonschema_rs.validator_for(schema, base_uri=f"{BASE}{name}.json", retriever=_definitions(version))


def _definitions(version: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"

    def retrieve(uri: str) -> Any:
        return json.loads((folder / uri.rpartition("/")[2]).read_text())

    return retrieve


def problems(manifest: Manifest, version: str = VERSIONS[-1]) -> list[str]:
    """What the object's schema holds against it."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    found = [
        f"{kind} {name}: {'/'.join(map(str, error.instance_path))}: {error.message}"
        for error in _schema(kind, manifest["apiVersion"], version).iter_errors(manifest)
    ]
    if kind == "LeaderWorkerSet":  # its CRD has pods in it
        templates = manifest["spec"]["leaderWorkerTemplate"]
        for part in ("leaderTemplate", "workerTemplate"):
            pod = {"apiVersion": "v1", "kind": "Pod", **templates[part]}
            pod["metadata"] = {"name": name, **pod["metadata"]}
            found += problems(pod, version)
    return found


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Each pod's specification, with the name of what makes it."""
    for each in manifests:
        name = each["metadata"]["name"]
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield name, each["spec"]["template"]["spec"]
        elif each["kind"] == "LeaderWorkerSet":
            for part in ("leaderTemplate", "workerTemplate"):
                yield f"{name}/{part}", each["spec"]["leaderWorkerTemplate"][part]["spec"]
