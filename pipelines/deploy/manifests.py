"""Kubernetes manifests of a run, from its config, and from its price where a rate is given.

    storage.yaml   a shared volume for the run directory, unless that is at an object store; and the config
    kafka.yaml     Kafka by Strimzi and the run's topics; not where the config names a Kafka
    mlflow.yaml    MLflow on PostgreSQL and object storage; not where the config names a server, or tracking is off
    run.yaml       a RayJob by KubeRay: a head, a machine near Kafka (the resource `broker`), and further ones
    serve.yaml     exfm serve over the run directory, or a RayService by KubeRay (Target.serve_on)

The templates are YAML in `k8s/`. A value that is `$name` alone becomes the value itself, `${name}` inside a text its
text. No manifest holds a secret: passwords are references to Secrets, which whoever deploys makes.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import yaml

from pipelines.capacity.price import Price
from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config, dump
from pipelines.data.checks.machine import LOOPBACK
from streaming.errors import BadInput
from streaming.kafka.secrets import SecretFrom
from streaming.store.objects import is_url, normalised

TEMPLATES = Path(__file__).parent / "k8s"
RUNS = "/runs"
"""Where the shared volume is mounted."""
CACHE = "/tmp/cache"
"""Of each pod, for working copies of a run on object storage."""

DAY_MS = 86_400_000
NAME_CHARACTERS = 24
INPUT_DAYS, LAKE_DAYS = 7, 30
"""Days of the input topics and of the lake that volumes hold."""
GIB = 1 << 30
UNPRICED = {"cores": 4, "memory": 16, "machines": 2, "kafka": 100, "runs": 200}
"""Sizes, in GiB, without a rate to take them from."""
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")
"""Of the run's object store; where the Secret lacks one, the pod's role and AWS's own address are taken."""
MLFLOW = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
RAY_VARIABLE = {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}
_ALONE, _INSIDE, _NAME = re.compile(r"\$(\w+)"), re.compile(r"\$\{(\w+)\}"), re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Image, storage and copies for a deployment.

    image           has the pinned environment, this source, and psycopg2 for MLflow
    bucket          of S3, for MLflow's files: BUCKET/PREFIX
    storage_class   of volumes that many machines write to; None: the cluster's default
    serving         copies of `exfm serve`
    serve_on        pods: a Deployment, which needs no Ray; ray: a RayService, whose replicas Ray Serve starts
    """

    image: str
    bucket: str | None = None
    storage_class: str | None = None
    serving: int = 2
    serve_on: Literal["pods", "ray"] = "pods"


def rendered(config: Config, target: Target, price: Price | None = None) -> dict[str, str]:
    """Manifests by file name. Equal arguments give equal texts.

    Raises BadInput for a config that another machine could not run: files of this one, passwords as plain text.
    """
    name = _name(config.name)
    _require_portable(config, target, name)
    own_kafka = config.follows is None and config.kafka.bootstrap_servers is None
    own_mlflow = config.tracking.enabled and config.tracking.uri is None
    store, token = _store(config, name), _from_secret("EXFM_TOKEN", f"{name}-serve", "token")
    place = normalised(config.run_dir) if config.run_dir is not None and store else f"{RUNS}/{name}"
    values = _sizes(config, price) | {
        "name": name,
        "image": target.image,
        "bucket": target.bucket,
        "storage_class": target.storage_class,
        "serving": target.serving,
        "config": dump(_as_deployed(config, name, own_kafka=own_kafka, own_mlflow=own_mlflow)),
        "place": place,
        "runs": None if store else {"name": "runs", "persistentVolumeClaim": {"claimName": f"{name}-runs"}},
        "mount": None if store else {"name": "runs", "mountPath": RUNS},
        "env": [*_environment(config, name), *store],
        "pod_env": [token, *store],
        "serve_env": [RAY_VARIABLE, token],
        "ray_version": metadata.version("ray"),
        "max_message_bytes": config.kafka.max_message_bytes,
        "entrypoint": shlex.join(["exfm", "stream", "/config/config.yaml", "--run-dir", place]),
    }
    stored = _filled("storage", values)
    manifests = {"storage.yaml": [each for each in stored if not store or each["kind"] == "ConfigMap"]}
    if own_kafka:
        manifests["kafka.yaml"] = _filled("kafka", values) + _topics(config, values)
    if own_mlflow:
        manifests["mlflow.yaml"] = _filled("mlflow", values)
    manifests["run.yaml"] = _run(values)
    manifests["serve.yaml"] = _filled("serve" if target.serve_on == "pods" else "serve-ray", values)
    header = f"# {name}: rendered by exfm deploy; {_of(price)}\n"
    return {file: header + "---\n".join(map(_text, documents)) for file, documents in manifests.items()}


def _name(text: str) -> str:
    """The name of all resources: so short that Strimzi's pods, which have it twice, keep within 63 characters.

    >>> _name("Ads ranking, homefeed, production"), _name("2026_ads")
    ('ads-ranking-homefeed-pro', 'x-2026-ads')
    """
    name = _NAME.sub("-", text.lower()).strip("-") or "exfm"
    return (name if name[0].isalpha() else f"x-{name}")[:NAME_CHARACTERS].strip("-")


def _require_portable(config: Config, target: Target, name: str) -> None:
    if plain := sorted(config.kafka.given):
        raise BadInput(
            f"kafka.security holds {', '.join(plain)} as plain text, which no manifest may hold; write {{env: NAME}}: "
            f"it is then taken from the Secret {name}-kafka, key NAME"
        )
    files = {}
    if isinstance(config.source, Recorded) and config.follows is None:
        files["source.path"] = config.source.path
        if config.source.feedback is not None:
            files["source.feedback.path"] = config.source.feedback.path
    if config.follows is not None:
        if is_url(config.follows.lake):
            raise BadInput(
                f"source.lake is {config.follows.lake}, and a run that follows a lake on object storage works on one "
                "machine, not on a cluster's: start it there with exfm stream, without resources.address"
            )
        files["source.lake"] = config.follows.lake
    if config.teacher.init_from is not None:
        files["teacher.init_from"] = str(config.teacher.init_from.path)
    for setting, value in config.kafka.security.items():
        if isinstance(value, SecretFrom) and value.env is None:
            raise BadInput(
                f"kafka.security.{setting} is read from this machine; write {{env: NAME}} for a Secret's key"
            )
        if setting.startswith("ssl_") and setting.endswith("file"):
            files[f"kafka.security.{setting}"] = str(value)
    _require_reachable(config)
    if _is_stored(config) and target.serve_on == "ray":
        raise BadInput(
            f"--serve-on ray reads a folder, and run_dir is {config.run_dir}; leave it out: pods read a bucket"
        )
    for setting, path in files.items():
        if _is_stored(config):
            raise BadInput(
                f"{setting} is {path}, and pods share no volume where run_dir is {config.run_dir}; give a run_dir in "
                "a folder, or leave the file out"
            )
        if not path.startswith(f"{RUNS}/"):
            raise BadInput(
                f"{setting} is {path}, which is on this machine; copy it to the shared volume and name it there: "
                f"{RUNS}/…"
            )
    if config.tracking.enabled and config.tracking.uri is None and target.bucket is None:
        raise BadInput(
            "MLflow keeps its files in object storage: give --bucket BUCKET/PREFIX, or the address of a server that "
            "there is (--set tracking.uri=…), or --set tracking.enabled=false"
        )


def _require_reachable(config: Config) -> None:
    """Raise BadInput for addresses that only this machine has."""
    hosts = [host for host, _ in config.kafka.addresses] if config.kafka.bootstrap_servers is not None else []
    if any(host in LOOPBACK for host in hosts):
        raise BadInput(
            f"kafka.bootstrap_servers is {config.kafka.bootstrap_servers}, which every pod takes for itself; give an "
            "address that pods reach, or null for a Kafka by Strimzi"
        )
    uri = config.tracking.uri
    if not config.tracking.enabled or uri is None:
        return
    if not uri.startswith(("http://", "https://")):
        raise BadInput(f"tracking.uri is {uri}, which is on this machine; give a server's address, http://…, or null")


def _as_deployed(config: Config, name: str, *, own_kafka: bool, own_mlflow: bool) -> Config:
    """The config with the addresses that it has inside the cluster."""
    changes: dict[str, Any] = {"resources": config.resources.model_copy(update={"address": "auto"})}
    if own_kafka:
        changes["kafka"] = config.kafka.model_copy(update={"bootstrap_servers": f"{name}-kafka-kafka-bootstrap:9092"})
    if own_mlflow:
        changes["tracking"] = config.tracking.model_copy(update={"uri": f"http://{name}-mlflow:5000"})
    return config.model_copy(update=changes)


def _is_stored(config: Config) -> bool:
    """True for a run on object storage, which pods need no shared volume for. Raises BadInput for a store of files."""
    if config.run_dir is None or not is_url(config.run_dir):
        return False
    if (url := normalised(config.run_dir)).startswith("file:"):
        raise BadInput(f"run_dir is {url}, which every pod takes for a folder of its own; give s3://BUCKET/PATH")
    return True


def _store(config: Config, name: str) -> list[dict[str, Any]]:
    """Variables of processes that reach the run's object store; none for a run in a folder."""
    if not _is_stored(config):
        return []
    return [{"name": "XDG_CACHE_HOME", "value": CACHE}, *(_perhaps(each, f"{name}-objects") for each in CREDENTIALS)]


def _environment(config: Config, name: str) -> list[dict[str, Any]]:
    """Variables of the run's processes; passwords by the name of a Secret."""
    secrets = [value for value in config.kafka.security.values() if isinstance(value, SecretFrom)]
    named = sorted({secret.env for secret in secrets if secret.env is not None})
    references = [_from_secret(variable, f"{name}-kafka", variable) for variable in named]
    if config.tracking.enabled and config.tracking.uri is not None:  # a server of yours, which may ask for them
        references += [_perhaps(variable, f"{name}-mlflow") for variable in MLFLOW]
    return [RAY_VARIABLE, *references]


def _from_secret(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _perhaps(variable: str, secret: str) -> dict[str, Any]:
    """A variable from a Secret, or none where that has no such key."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": variable, "optional": True}}}


def _sizes(config: Config, price: Price | None) -> dict[str, Any]:
    """Machines and volumes; those of a price have what it says, and room for the share that libraries take of each."""
    if price is None:
        found = dict(UNPRICED)
    else:
        sizes = {size.name: size.bytes for size in price.disk}
        topics = _input_days(config) * sizes["input topics"] + sizes["examples topic"]
        kept = sum(size.bytes * (LAKE_DAYS if size.grows else 1) for size in price.disk if "topic" not in size.name)
        found = {
            "cores": math.floor(price.cores_per_machine),
            "memory": math.floor(price.memory_per_machine / GIB),
            "machines": price.machines,
            "kafka": max(10, math.ceil(topics / GIB)),
            "runs": max(10, math.ceil(kept / GIB)),
        }
    return {
        "cores": str(found["cores"]),
        "memory": f"{found['memory']}Gi",
        "others": found["machines"] - 1,
        "kafka_size": f"{found['kafka']}Gi",
        "runs_size": f"{found['runs']}Gi",
    }


def _of(price: Price | None) -> str:
    if price is None:
        return "sizes are placeholders, since no rate was given (--impressions-per-s)"
    workload, extrapolated = price.workload, ", extrapolated" if price.extrapolated else ""
    return f"sizes for {workload.impressions:g} impressions a second and {workload.students} students{extrapolated}"


def _input_days(config: Config) -> int:
    """Days that input topics are kept: as long as a run needs them, and a week at least."""
    needed_s = config.rows.groups[-1].window_ms / 1000 + config.settlement.lateness_s + config.kafka.downtime_s
    return max(INPUT_DAYS, math.ceil(needed_s / 86_400) + 1)


def _topics(config: Config, values: Mapping[str, Any]) -> list[Any]:
    kafka = config.kafka
    inputs_days = None if config.plays else _input_days(config)
    kept_days = [
        (kafka.impressions, inputs_days),
        (kafka.feedback, inputs_days),
        (kafka.examples, None),
        (kafka.dead_letters, kafka.dead_letter_days),
    ]
    documents = []
    for topic, days in kept_days:
        own = {
            "topic": topic.topic,
            "topic_resource": f"{values['name']}-{_NAME.sub('-', topic.topic.lower()).strip('-')}",
            "partitions": topic.partitions,
            "retention_ms": -1 if days is None else round(days * DAY_MS),
        }
        documents += _filled("topic", {**values, **own})
    return documents


def _run(values: Mapping[str, Any]) -> list[Any]:
    (job,) = _filled("run", values)
    cluster = job["spec"]["rayClusterSpec"]
    cluster["workerGroupSpecs"] = [group for group in cluster["workerGroupSpecs"] if group["replicas"]]
    return [job]


def _filled(template: str, values: Mapping[str, Any]) -> list[Any]:
    text = (TEMPLATES / f"{template}.yaml").read_text()
    return [_fill(document, values) for document in yaml.safe_load_all(text)]


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    """A part of a template with its values; a key or an item without one is left out.

    >>> _fill({"a": "$n", "b": "x-${s}", "c": "$none", "d": ["$none", 1]}, {"n": 3, "s": "y", "none": None})
    {'a': 3, 'b': 'x-y', 'd': [1]}
    """
    if isinstance(node, dict):
        filled = {_fill(key, values): _fill(value, values) for key, value in node.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(node, list):
        return [filled for each in node if (filled := _fill(each, values)) is not None]
    if not isinstance(node, str):
        return node
    if (alone := _ALONE.fullmatch(node)) is not None:
        return values[alone[1]]
    return _INSIDE.sub(lambda found: str(values[found[1]]), node)


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, whose texts of several lines are blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _text(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
