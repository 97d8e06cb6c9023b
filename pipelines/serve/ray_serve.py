"""The same server as a Ray Serve deployment, for a cluster. A replica is what a process of `exfm serve` is, and has a
shelf of its own.

    serve run pipelines.serve.ray_serve:application run_dir=runs/demo names=feed,shop replicas=2

Another champion is taken up inside the replica, by one pointer. Serve's `user_config` could name a version too, but a
replica answers nothing while it is reconfigured (ray#54509), and each would take it up at a time of its own.

Ray's proxy listens, and has the TLS. A replica that finds EXFM_TOKEN in its environment asks requests for that token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from exfm.machine import set_threads
from pipelines.core.access import VARIABLE, Access, token_from
from pipelines.serve.app import RequestLimits
from pipelines.serve.processes import MOST_AT_ONCE, ServerSettings, server_of
from pipelines.serve.sources import Follow
from pipelines.serve.tables import TableSettings
from streaming.errors import BadInput


class RaySettings(BaseModel):
    """Arguments of `application`. A file of Ray Serve gives it as `args`, the command `serve run` as KEY=VALUE."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_dir: Path | None = Field(default=None, description="folder of the run, on every node that has a replica")
    names: str = Field(default="", description="students, or models:/NAME@ALIAS, by commas; empty: all of the run")
    follow: Follow = Field(default="champion", description="which versions are served, as `exfm serve --follow`")
    tracking_uri: str | None = Field(default=None, description="MLflow's store, for registered models")
    tables: Literal["fp32", "int8", "int4"] = Field(default="fp32", description="as `exfm serve --tables`")
    max_ne_loss: float = Field(default=0.001, ge=0, description="by how much `tables` may raise the NE of a task")
    max_rows: int = Field(default=4096, ge=1, description="of one request")
    max_mb: float = Field(default=8.0, ge=0.001, description="of one request's body")
    replicas: int = Field(default=1, ge=1, description="each uses a core and holds the models")

    def serving(self) -> ServerSettings:
        """Settings of a server; raises BadInput for contradictory arguments."""
        names = tuple(name.strip() for name in self.names.split(",") if name.strip())
        if self.follow == "live" and self.tables != "fp32":
            raise BadInput(f"follow=live serves fp32, and tables is {self.tables}; follow champion with those")
        return ServerSettings(
            None if self.run_dir is None else self.run_dir.resolve(),
            names,
            self.follow,
            limits=RequestLimits(max_bytes=round(self.max_mb * 1e6), max_rows=self.max_rows),
            access_log=False,
            tracking_uri=self.tracking_uri,
            tables=TableSettings(self.tables, self.max_ne_loss),
        )


class Replica:
    """A model store with its interface. Ray Serve builds one in each of its processes."""

    def __init__(self, settings: ServerSettings, asks_token: bool) -> None:
        """Raises BadInput where a token is asked for, and this process has none."""
        set_threads(1)
        token = token_from(None)  # here: Ray's dashboard shows arguments
        if asks_token and token is None:
            raise BadInput(f"{VARIABLE} is set here, and not in the cluster's processes: set it where `ray start` runs")
        self._server = server_of(settings._replace(access=Access(token=token)), settings.sources())

    def __serve_build_asgi_app__(self) -> Any:
        return self._server.app

    def __del__(self) -> None:
        if hasattr(self, "_server"):
            self._server.close()


def application(args: dict[str, Any]) -> serve.Application:
    """Entry point for `serve run`, `serve build` and `serve.run`. `args`: as RaySettings has them.

    Raises BadInput where there is no such run, student or model, ValueError where a setting is not one of these.
    """
    settings = RaySettings.model_validate(args)
    server = settings.serving()
    for origin in server.sources():  # what cannot be is said here, before a replica starts
        origin.close()
    in_a_replica = serve.deployment(
        name="students",
        num_replicas=settings.replicas,
        max_ongoing_requests=MOST_AT_ONCE,
        ray_actor_options={"num_cpus": 1},
    )
    deployment: Any = in_a_replica(serve.ingress()(Replica))
    bound: serve.Application = deployment.bind(server, token_from(None) is not None)
    return bound
