"""Which Kafka to talk to, and how patiently."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from streaming.errors import BadInput
from streaming.messages import MAX_MESSAGE_BYTES

SECURITY_KEYS = frozenset(
    {
        "security_protocol",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_crlfile",
        "ssl_keyfile",
        "ssl_password",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_plain_password",
        "sasl_plain_username",
    }
)


class KafkaSettings(BaseModel):
    """Which Kafka, and how patiently.

    `security` goes to the client as it is: `security_protocol`, `ssl_*`, `sasl_*`.

    >>> KafkaSettings(bootstrap_servers="kafka:9092", security={"security_protocol": "SSL"}).addresses
    [('kafka', 9092)]
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_servers: str | None = None
    security: dict[str, str | int | bool] = {}
    connect_timeout_s: float = Field(default=15.0, gt=0)
    request_timeout_s: float = Field(default=30.0, gt=1)
    delivery_timeout_s: float = Field(default=120.0, gt=0)
    give_up_s: float = Field(default=300.0, gt=0)
    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1024)
    max_pending_bytes: int = Field(default=64 * 2**20, gt=0)
    compression: Literal["lz4", "zstd", "none"] = "lz4"

    @field_validator("security")
    @classmethod
    def _known_to_the_client(cls, security: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(security) - SECURITY_KEYS)
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(SECURITY_KEYS))}")
        return security

    @model_validator(mode="after")
    def _time_for_a_request(self) -> KafkaSettings:
        if self.delivery_timeout_s < self.request_timeout_s + 1:  # the client refuses less than it needs for one
            raise ValueError(
                f"delivery_timeout_s is {self.delivery_timeout_s:g} and request_timeout_s {self.request_timeout_s:g}: "
                f"a message needs time for a request; make delivery_timeout_s {self.request_timeout_s + 1:g} or more"
            )
        return self

    @field_validator("bootstrap_servers")
    @classmethod
    def _host_and_port(cls, servers: str | None) -> str | None:
        for server in servers.split(",") if servers is not None else []:
            if not re.fullmatch(r".+:[0-9]{1,5}", server.strip()):
                raise ValueError(f"`{server}` is not HOST:PORT")
        return servers

    @property
    def addresses(self) -> list[tuple[str, int]]:
        if self.bootstrap_servers is None:
            raise BadInput(
                "no Kafka broker is known; start one with `exfm broker start`, or set `bootstrap_servers` to HOST:PORT"
            )
        pairs = (server.strip().rpartition(":") for server in self.bootstrap_servers.split(","))
        return [(host, int(port)) for host, _, port in pairs]
