"""Manifests of a run: what the operators' published schemas say of them, what is in them, and what is not."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from pipelines.capacity.price import Pricing
from pipelines.capacity.rates import read_rates
from pipelines.core.config.settings import dump, load, parse
from pipelines.deploy.manifests import Target, rendered
from pipelines.serve.ray_serve import RaySettings
from streaming.errors import BadInput
from tests.support.crds import FILES, POD, documents, pods, schema_of

TARGET = Target(image="exfm:1", bucket="models/demo")


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in found if document["kind"] == kind]


def demo(*overrides: str):
    return load("configs/demo.yaml", list(overrides))


@pytest.mark.parametrize("kind", FILES)
def test_the_operators_schemas_hold_for_what_is_rendered(kind):
    found = of_kind(documents(serve_on="ray"), kind)
    assert found
    for document in found:
        jsonschema.validate(document, schema_of(kind))


def test_pods_of_deployments_are_pods():
    found = [pod for document in documents() for pod in pods(document)]
    assert len(found) == 3  # PostgreSQL, MLflow, serving
    for pod in found:
        jsonschema.validate(pod, schema_of(POD))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Kafka", "spec.kafka.listeners.0.type", "external"),
        ("Kafka", "spec.kafka.listeners.0.port", 80),
        ("Kafka", "spec.zookeeper", {}),
        ("KafkaNodePool", "spec.roles.0", "zookeeper"),
        ("KafkaNodePool", "spec.replicas", "three"),
        ("KafkaTopic", "spec.partitions", 0),
        ("RayJob", "spec.rayClusterSpec.headGroupSpec.rayStartParams", {"num-cpus": 0}),
        ("RayJob", "spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.imagee", "exfm:1"),
        ("RayJob", "spec.backoffLimit", "ten"),
        ("RayService", "spec.serveConfigV2", {"applications": []}),
        ("RayService", "spec.rayClusterConfig.workerGroupSpecs.0.replicas", "2"),
        ("RayService", "spec.rayClusterSpec", {}),
    ],
)
def test_a_mistake_in_a_template_is_refused_by_the_schema(kind, path, value):
    document: Any = of_kind(documents(serve_on="ray"), kind)[0]
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node = node[int(name) if isinstance(node, list) else name]
    node[int(last) if isinstance(node, list) else last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema_of(kind))


def test_the_same_config_gives_the_same_texts():
    assert rendered(demo(), TARGET) == rendered(demo(), TARGET)


def test_the_run_finds_kafka_and_mlflow_and_its_own_ray():
    (config,) = of_kind(documents(), "ConfigMap")
    deployed = parse(yaml.safe_load(config["data"]["config.yaml"]))
    assert deployed.kafka.bootstrap_servers == "demo-kafka-kafka-bootstrap:9092"
    assert deployed.tracking.uri == "http://demo-mlflow:5000"
    assert deployed.resources.address == "auto"
    assert deployed.students == demo().students


def test_whoever_asks_a_pod_that_serves_needs_the_token_of_a_secret():
    (container,) = [
        pod["spec"]["containers"][0] for each in documents() for pod in pods(each) if "demo-serve" in str(pod)
    ]
    assert "--host=0.0.0.0" in container["args"]
    reference = {"secretKeyRef": {"name": "demo-serve", "key": "token"}}
    assert container["env"] == [{"name": "EXFM_TOKEN", "valueFrom": reference}]


def test_a_ray_service_serves_the_run_by_the_application_that_there_is():
    found = documents(serve_on="ray", serving=3)
    (service,) = of_kind(found, "RayService")
    assert not [each for each in found if each["kind"] == "Deployment" and "serve" in each["metadata"]["name"]]
    deployed = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (app,) = deployed.applications
    assert (deployed.http_options.host, deployed.http_options.port) == ("0.0.0.0", 8000)
    module, name = app.import_path.split(":")
    assert callable(getattr(import_module(module), name))
    settings = RaySettings.model_validate(app.args)
    assert (str(settings.run_dir), settings.replicas) == ("/runs/demo", 3)
    cluster = service["spec"]["rayClusterConfig"]
    (replicas,) = cluster["workerGroupSpecs"]
    assert replicas["replicas"] == 3
    reference = {"secretKeyRef": {"name": "demo-serve", "key": "token"}}
    for group in (cluster["headGroupSpec"], replicas):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "EXFM_TOKEN", "valueFrom": reference} in container["env"]
        assert container["image"] == "exfm:1"


def test_topics_have_the_partitions_of_the_config_and_keep_what_the_run_needs():
    topics = {
        each["spec"]["topicName"]: (each["spec"]["partitions"], each["spec"]["config"]["retention.ms"])
        for each in of_kind(documents("configs/demo.yaml", "kafka.examples.partitions=4"), "KafkaTopic")
    }
    assert topics == {
        "impressions": (2, -1),
        "feedback": (2, -1),
        "examples": (4, -1),
        "dead-letters": (1, 30 * 86_400_000),
    }


def test_what_the_config_names_is_not_rendered():
    texts = rendered(demo("kafka.bootstrap_servers=kafka:9092", "tracking.uri=http://mlflow:5000"), TARGET)
    assert list(texts) == ["storage.yaml", "run.yaml", "serve.yaml"]


STORED = ("run_dir=s3://ads/runs/demo", "kafka.bootstrap_servers=kafka:9092", "tracking.enabled=false")


def test_a_run_on_object_storage_has_no_volume_that_pods_share():
    texts = rendered(demo(*STORED), TARGET)
    (config,) = yaml.safe_load_all(texts["storage.yaml"])
    (job,) = yaml.safe_load_all(texts["run.yaml"])
    serving = of_kind([*yaml.safe_load_all(texts["serve.yaml"])], "Deployment")[0]["spec"]
    assert config["kind"] == "ConfigMap"
    assert parse(yaml.safe_load(config["data"]["config.yaml"])).run_dir == "s3://ads/runs/demo"
    assert job["spec"]["entrypoint"] == "exfm stream /config/config.yaml --run-dir s3://ads/runs/demo"
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"], serving):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {each["name"] for each in [*pod["volumes"], *container["volumeMounts"]]} <= {"config"}
        assert "XDG_CACHE_HOME" in {each["name"] for each in container["env"]}
        (key,) = [each for each in container["env"] if each["name"] == "AWS_SECRET_ACCESS_KEY"]
        assert key["valueFrom"]["secretKeyRef"]["name"] == "demo-objects"
    assert "--run-dir=s3://ads/runs/demo" in serving["template"]["spec"]["containers"][0]["args"]
    assert "PersistentVolumeClaim" not in "".join(texts.values())


@pytest.mark.parametrize(
    ("overrides", "target", "words"),
    [
        (["run_dir=file:///mnt/x"], TARGET, "every pod takes for a folder of its own"),
        ([], replace(TARGET, serve_on="ray"), "--serve-on ray reads a folder"),
        (["kafka.security={ssl_cafile: /runs/ca.pem}"], TARGET, "pods share no volume"),
    ],
)
def test_what_needs_a_folder_is_refused_for_a_run_on_object_storage(overrides, target, words):
    with pytest.raises(BadInput, match=words):
        rendered(demo(*STORED, *overrides), target)


def test_passwords_are_names_of_secrets():
    secured = demo(
        "kafka.bootstrap_servers=kafka:9092",
        "tracking.uri=http://mlflow:5000",
        "kafka.security={security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_plain_username: exfm, "
        "sasl_plain_password: {env: KAFKA_PASSWORD}}",
    )
    (job,) = yaml.safe_load_all(rendered(secured, TARGET)["run.yaml"])
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    reference = {"secretKeyRef": {"name": "demo-kafka", "key": "KAFKA_PASSWORD"}}
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "KAFKA_PASSWORD", "valueFrom": reference} in container["env"]
        (token,) = [each for each in container["env"] if each["name"] == "MLFLOW_TRACKING_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"]["name"] == "demo-mlflow"


def test_a_password_in_the_config_is_refused():
    plain = demo("kafka.bootstrap_servers=kafka:9092", "kafka.security={sasl_plain_password: hunter2}")
    with pytest.raises(BadInput, match="sasl_plain_password as plain text") as caught:
        rendered(plain, TARGET)
    assert "hunter2" not in str(caught.value)


def test_sizes_are_those_of_the_price():
    pricing = Pricing(demo(), read_rates(None))
    price = pricing.price(pricing.workload(100_000), cores=8, memory=64 * 2**30)
    texts = rendered(demo(), TARGET, price)
    (job,) = yaml.safe_load_all(texts["run.yaml"])
    near, others = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert near["replicas"] + others["replicas"] == price.machines
    (container,) = others["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "64Gi"}
    assert "sizes for 100000 impressions a second and 5 students, extrapolated" in texts["run.yaml"]
    assert "placeholders" in rendered(demo(), TARGET)["run.yaml"]


def test_one_machine_is_the_one_near_the_broker():
    pricing = Pricing(demo(), read_rates(None))
    price = pricing.price(pricing.workload(10), cores=8, memory=64 * 2**30)
    (job,) = yaml.safe_load_all(rendered(demo(), TARGET, price)["run.yaml"])
    assert [group["groupName"] for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]] == ["near-broker"]


def test_files_of_this_machine_are_refused():
    with pytest.raises(BadInput, match="is on this machine; copy it to the shared volume"):
        rendered(load("configs/movielens.yaml"), TARGET)


def test_a_run_that_follows_a_lake_on_object_storage_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "ads").mkdir()
    (tmp_path / "ads" / "config.yaml").write_text(dump(demo()))
    team = {"name": "team", "source": {"lake": (tmp_path / "ads").as_uri()}, "students": [{"name": "feed"}]}
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(team))
    with pytest.raises(BadInput, match="follows a lake on object storage works on one machine"):
        rendered(load(tmp_path / "team.yaml"), TARGET)


def test_mlflow_without_a_bucket_is_refused():
    with pytest.raises(BadInput, match="--bucket BUCKET/PREFIX"):
        rendered(demo(), Target(image="exfm:1"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("kafka.bootstrap_servers=localhost:9092", "which every pod takes for itself"),
        ("tracking.uri=sqlite:////some/where/mlflow.db", "is on this machine"),
        ("tracking.uri=http://me:s3cret@host:5000", "holds a password, or may"),
        (
            "kafka.security.ssl_cafile=/some/where/ca.pem",
            "kafka.security.ssl_cafile is /some/where/ca.pem, which is on this",
        ),
        ("kafka.security.sasl_plain_password={file: /some/where/pw}", "write {env: NAME}"),
    ],
)
def test_what_only_this_machine_has_and_what_is_secret_is_refused(override, words):
    with pytest.raises(BadInput) as refused:
        rendered(demo("kafka.bootstrap_servers=kafka:9092", override), TARGET)
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_every_name_fits_into_what_is_made_of_it():
    found = rendered(parse(demo().model_dump(mode="json") | {"name": "2026_" + "a" * 39 + "-b"}), TARGET)
    names = [document["metadata"]["name"] for text in found.values() for document in yaml.safe_load_all(text)]
    assert all(name[0].isalpha() and name[-1].isalnum() for name in names)
    (cluster,) = (d for d in yaml.safe_load_all(found["kafka.yaml"]) if d["kind"] == "Kafka")
    (pool,) = (d for d in yaml.safe_load_all(found["kafka.yaml"]) if d["kind"] == "KafkaNodePool")
    assert len(f"{cluster['metadata']['name']}-{pool['metadata']['name']}-0") <= 63


def test_input_topics_are_kept_as_long_as_the_run_needs_them():
    raw = demo("kafka.downtime_s=864000").model_dump(mode="json") | {"source": None}
    found = rendered(parse(raw), TARGET)
    topics = {d["spec"]["topicName"]: d for d in yaml.safe_load_all(found["kafka.yaml"]) if d["kind"] == "KafkaTopic"}
    assert topics["impressions"]["spec"]["config"]["retention.ms"] >= 1000 * 864_000
