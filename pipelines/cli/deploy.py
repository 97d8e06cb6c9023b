"""`exfm deploy`: files with which a run is started elsewhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.tools.options import Overrides


class DeployTarget(StrEnum):
    K8S = "k8s"


class ServeOn(StrEnum):
    PODS = "pods"
    RAY = "ray"


def register(app: typer.Typer) -> None:
    app.command()(deploy)


def deploy(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    render: Annotated[DeployTarget, typer.Option("--render", help="k8s: manifests for KubeRay and Strimzi.")],
    image: Annotated[
        str, typer.Option("--image", help="Has the pinned packages, this source, and psycopg2 for MLflow.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="A folder for the files; default: print them.")] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", help="BUCKET/PREFIX of S3, where MLflow keeps its files.")
    ] = None,
    storage_class: Annotated[
        str | None, typer.Option("--storage-class", help="Of the run directory's volume, which all machines write to.")
    ] = None,
    serving: Annotated[int, typer.Option("--serving", min=0, help="Copies of exfm serve.")] = 2,
    serve_on: Annotated[
        ServeOn, typer.Option("--serve-on", help="pods: a Deployment of exfm serve; ray: a RayService of KubeRay.")
    ] = ServeOn.PODS,
    impressions: Annotated[
        float | None,
        typer.Option("--impressions-per-s", help="At the peak: sizes are those of exfm capacity; else placeholders."),
    ] = None,
    students: Annotated[
        int | None, typer.Option("--students", min=0, help="How many students like the config's; default: those.")
    ] = None,
    cores_per_machine: Annotated[
        float, typer.Option("--cores-per-machine", min=1, help="Cores of a machine of Ray.")
    ] = 4.0,
    memory_gb: Annotated[float, typer.Option("--memory-gb", min=2, help="Memory of a machine of Ray.")] = 16.0,
    overrides: Overrides = None,
) -> None:
    """Render a run for Kubernetes: Ray, Kafka, MLflow, serving, and a shared volume. Nothing is applied.

    Passwords stay in Secrets of yours: NAME-postgres, NAME-objects, NAME-serve with the token of requests to students,
    NAME-kafka where the config names variables, and NAME-mlflow where a server of yours asks for a password.

    Example: exfm deploy configs/demo.yaml --render k8s --image exfm:1 \\
             --bucket models/demo --out k8s
    """
    from pipelines.capacity.price import Pricing
    from pipelines.capacity.rates import read_rates
    from pipelines.core.config.settings import load
    from pipelines.deploy.manifests import Target, rendered
    from streaming.store.files import write_text

    settings, price = load(config, overrides), None
    if impressions is not None:
        pricing = Pricing(settings, read_rates(None), students)
        price = pricing.price(pricing.workload(impressions), cores_per_machine, memory_gb * 1e9)
    target = Target(image=image, bucket=bucket, storage_class=storage_class, serving=serving, serve_on=serve_on.value)
    for file, text in rendered(settings, target, price).items():
        if out is None:
            typer.echo(f"# --- {file}\n{text}", nl=False)
        else:
            write_text(out / file, text)
            typer.echo(out / file)
