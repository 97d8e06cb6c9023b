"""Published schemas of KubeRay's and Strimzi's kinds, cut to the fields that rendered manifests use.

`tests/fixtures/crds/*.json` are made of the operators' files, which are under the Apache License 2.0 (NOTICE there):

    python -m tests.support.crds KUBERAY_CHECKOUT STRIMZI_CHECKOUT

A field that is not in a schema is refused, as the operators' API would drop it: a template with a new field needs its
schema cut again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from pipelines.core.config.settings import load
from pipelines.deploy.manifests import Target, rendered
from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "fixtures" / "crds"
FILES = {
    "RayJob": (0, "ray-operator/config/crd/bases/ray.io_rayjobs.yaml"),
    "RayService": (0, "ray-operator/config/crd/bases/ray.io_rayservices.yaml"),
    "Kafka": (1, "install/cluster-operator/040-Crd-kafka.yaml"),
    "KafkaNodePool": (1, "install/cluster-operator/045-Crd-kafkanodepool.yaml"),
    "KafkaTopic": (1, "install/cluster-operator/043-Crd-kafkatopic.yaml"),
}
POD = "PodTemplate"
"""The pods of RayJob's workers are pods like any other: their schema holds for a Deployment's."""

Document = dict[str, Any]


def documents(config: str = "configs/demo.yaml", *overrides: str, **target: Any) -> list[Document]:
    """What is rendered of a config, as parsed YAML; `target`: of `Target`."""
    options = {"image": "exfm:1", "bucket": "models/demo"} | target
    texts = rendered(load(config, list(overrides)), Target(**options)).values()
    return [document for text in texts for document in yaml.safe_load_all(text)]


def schema_of(kind: str) -> Document:
    schema: Document = json.loads((FOLDER / f"{kind}.json").read_text())
    return schema


def pods(document: Document) -> list[Any]:
    """Pod templates of a Deployment or a StatefulSet."""
    return [document["spec"]["template"]] if document["kind"] in ("Deployment", "StatefulSet") else []


def cut(schema: Document, values: list[Any]) -> Document:
    """The part of a schema that these values use, with what is required; other fields are refused.

    >>> cut({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, [{"a": 1}])
    {'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'additionalProperties': False}
    """
    kept = {key: value for key, value in schema.items() if key not in ("description", "properties", "items")}
    kept = {key: value for key, value in kept.items() if not key.startswith("x-") or "unknown" in key}
    if schema.get("x-kubernetes-int-or-string"):
        kept |= {"type": ["integer", "string"]}
    mappings = [value for value in values if isinstance(value, dict)]
    if "properties" in schema:
        used = {name for value in mappings for name in value} & schema["properties"].keys()
        required = [name for name in schema.get("required", []) if name in schema["properties"]]
        kept["properties"] = {
            name: cut(schema["properties"][name], [value[name] for value in mappings if name in value])
            for name in sorted(used | set(required))
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    if "items" in schema:
        kept["items"] = cut(schema["items"], [each for value in values if isinstance(value, list) for each in value])
    return kept


def _cut_all(checkouts: list[Path]) -> None:
    found = [*documents(), *documents(serve_on="ray")]
    for kind, (checkout, path) in FILES.items():
        definition = yaml.safe_load((checkouts[checkout] / path).read_text())
        (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
        schema, own = version["schema"]["openAPIV3Schema"], [each for each in found if each["kind"] == kind]
        schema["properties"]["metadata"] = {"type": "object"}
        _store(kind, cut(schema, own))
        if kind == "RayJob":
            groups = schema["properties"]["spec"]["properties"]["rayClusterSpec"]["properties"]["workerGroupSpecs"]
            template = groups["items"]["properties"]["template"]
            template["properties"]["metadata"] = {"type": "object"}
            _store(POD, cut(template, [pod for each in found for pod in pods(each)]))


def _store(name: str, schema: Document) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _cut_all([Path(checkout) for checkout in sys.argv[1:]])
