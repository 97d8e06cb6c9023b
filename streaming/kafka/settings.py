"""Connection to a Kafka cluster: addresses, security, time-outs, bounds."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from streaming.errors import BadInput
from streaming.kafka.secrets import SECRET_KEYS, WAYS, SecretFrom, read_secrets, secret, written
from streaming.kafka.tokens import OAUTH_TOKEN, Tokens
from streaming.messages.ipc import MAX_MESSAGE_BYTES
from streaming.program import command

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
        "sasl_oauth_token",
        "sasl_plain_password",
        "sasl_plain_username",
    }
)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ADDRESS = re.compile(
    r"(?:(?P<protocol>\w+)://)?(?:\[(?P<six>[^\[\]/]+)\]|(?P<host>[^:/\[\]@\s]+)):(?P<port>[0-9]{1,5})"
)


class KafkaSettings(BaseModel):
    """Connection to a Kafka cluster: addresses, security, time-outs, bounds.

    >>> KafkaSettings(bootstrap_servers="kafka:9092", security={"security_protocol": "SSL"}).addresses
    [('kafka', 9092)]
    >>> KafkaSettings(bootstrap_servers="PLAINTEXT://kafka:9092,[::1]:9093").addresses
    [('kafka', 9092), ('::1', 9093)]
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    bootstrap_servers: str | None = Field(
        default=None,
        description="addresses of a Kafka of yours, HOST:PORT or [IPV6]:PORT separated by commas; null: the embedded "
        "broker",
    )
    security: dict[str, str | int | bool | SecretStr | SecretFrom] = Field(
        default_factory=dict,
        description="passed to the Kafka client: security_protocol, ssl_*, sasl_*. The secrets in it "
        "(`sasl_plain_password`, `ssl_password`, and for OAUTHBEARER `sasl_oauth_token`) are {env: NAME}, {file: PATH} "
        "or {command: [PROGRAM, ARGUMENT, …]}; a plain text is taken, and never stored",
    )
    connect_timeout_s: float = Field(
        default=15.0, gt=0, description="how long a new connection waits for the first answer of a broker"
    )
    request_timeout_s: float = Field(default=30.0, gt=1, description="how long one request waits for its answer")
    delivery_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="how long a message may take to be acknowledged, retries included; at least request_timeout_s + 1",
    )
    give_up_s: float = Field(
        default=300.0, gt=0, description="how long an absent broker is waited for before a worker fails"
    )
    max_message_bytes: int = Field(
        default=MAX_MESSAGE_BYTES,
        ge=1024,
        description="largest message that is written or read; a larger one becomes a dead letter, unread",
    )
    max_pending_bytes: int = Field(
        default=64 * 2**20,
        gt=0,
        description="bytes of messages sent but not acknowledged; a writer waits at this bound",
    )
    compression: Literal["lz4", "zstd", "none"] = Field(default="lz4", description="of the messages written")

    @field_validator("security", mode="before")
    @classmethod
    def _secrets(cls, security: Any) -> Any:
        """Before anything else looks at them: an error would quote a password."""
        if not isinstance(security, dict):
            return security
        parsed = dict(security)
        for name in SECRET_KEYS:
            if name in parsed:
                try:
                    parsed[name] = secret(parsed[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return parsed

    @field_serializer("security", when_used="json")
    def _without_secrets(self, security: dict[str, Any]) -> dict[str, Any]:
        return {name: written(value) for name, value in security.items()}

    @field_validator("security")
    @classmethod
    def _known_to_the_client(cls, security: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(security) - SECURITY_KEYS)
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(SECURITY_KEYS))}")
        if (security.get("sasl_mechanism") == "OAUTHBEARER") != (OAUTH_TOKEN in security):
            raise ValueError(f"`sasl_mechanism: OAUTHBEARER` and `{OAUTH_TOKEN}` ({WAYS}) belong together: give both")
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
            parts = _ADDRESS.fullmatch(server.strip())
            if parts is None:
                raise ValueError(f"`{server}` is not HOST:PORT, nor [IPV6]:PORT such as [::1]:9092")
            if parts["protocol"] and parts["protocol"].upper() not in PROTOCOLS:
                raise ValueError(
                    f"`{server}` is not HOST:PORT; in front of it may stand {', '.join(PROTOCOLS)} and ://"
                )
            if not 0 < int(parts["port"]) < 65536:
                raise ValueError(f"`{server}` has port {parts['port']}, and ports are 1 to 65535")
        return servers

    @model_validator(mode="after")
    def _protocol_of_the_addresses(self) -> KafkaSettings:
        """A protocol in front of an address is taken where it says what `security` says."""
        own = str(self.security.get("security_protocol", "PLAINTEXT"))
        for server in (self.bootstrap_servers or "").split(","):
            parts = _ADDRESS.fullmatch(server.strip())
            if parts is not None and parts["protocol"] and parts["protocol"].upper() != own:
                raise ValueError(
                    f"bootstrap_servers names {parts['protocol']}:// and security.security_protocol is {own}; leave "
                    f"{parts['protocol']}:// out, or set security.security_protocol to {parts['protocol'].upper()}"
                )
        return self

    @classmethod
    def of_servers(cls, servers: str | None) -> KafkaSettings:
        """Settings from a command's addresses only. Raises BadInput for what is no address."""
        try:
            return cls(bootstrap_servers=servers)
        except ValidationError as error:
            problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
            raise BadInput(f"--bootstrap-servers {servers}: {problems}") from None

    @property
    def given(self) -> dict[str, SecretStr]:
        """Passwords given as plain text, which are lost when these settings are written down."""
        return {name: value for name, value in self.security.items() if isinstance(value, SecretStr)}

    def client_security(self) -> dict[str, Any]:
        """`security` with its secrets read, for the client. Raises BadInput or StreamingError, naming the setting."""
        return read_secrets(self.security)

    @property
    def oauth_tokens(self) -> Tokens | None:
        """Provider of OAuth tokens; None unless configured."""
        if OAUTH_TOKEN not in self.security:
            return None
        source = {OAUTH_TOKEN: self.security[OAUTH_TOKEN]}
        return Tokens(lambda: str(read_secrets(source)[OAUTH_TOKEN]))

    @property
    def addresses(self) -> list[tuple[str, int]]:
        if self.bootstrap_servers is None:
            raise BadInput(
                f"no Kafka broker is known; start one with `{command('exfm', 'broker', 'start')}`, then give its "
                "HOST:PORT, or that of your own, as `kafka.bootstrap_servers`"
            )
        matches = (_ADDRESS.fullmatch(server.strip()) for server in self.bootstrap_servers.split(","))
        return [(parts["six"] or parts["host"], int(parts["port"])) for parts in matches if parts is not None]
