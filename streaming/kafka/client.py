"""Connections to Kafka. Only this file and `patches` import its client, of which others use the names that are exported
here (`X as X`); its errors are explained here."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaAdminClient as KafkaAdminClient
from kafka import KafkaConsumer as KafkaConsumer
from kafka import KafkaProducer as KafkaProducer
from kafka import TopicPartition as TopicPartition
from kafka import codec as codecs
from kafka.admin import ConfigResource as ConfigResource
from kafka.admin import ConfigResourceType as ConfigResourceType
from kafka.errors import AuthorizationError as AuthorizationError
from kafka.errors import (
    BrokerResponseError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.errors import GroupAuthorizationFailedError as GroupAuthorizationFailedError
from kafka.errors import KafkaError as KafkaError
from kafka.errors import LogTruncationError as LogTruncationError
from kafka.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
from kafka.errors import OutOfOrderSequenceNumberError as OutOfOrderSequenceNumberError
from kafka.errors import RetriableError as RetriableError
from kafka.errors import TopicAlreadyExistsError as TopicAlreadyExistsError
from kafka.errors import UnsupportedCodecError as UnsupportedCodecError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata as OffsetAndMetadata

from streaming.errors import BrokerAway, NotAdmitted, StreamingError
from streaming.kafka import patches, unpacking
from streaming.kafka.patches import Unpacking
from streaming.kafka.rights import Right
from streaming.kafka.secrets import written
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.tokens import OAUTH_TOKEN, Tokens
from streaming.messages.message import RawMessage
from streaming.position import Partition

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an absent broker is reported by what is raised here
patches.install()

Client = TypeVar("Client")


class _Lost(NamedTuple):
    """A connection that was lost, why, and whether the broker had said its version before: then it lacked a user."""

    at_s: float
    error: BaseException
    greeted: bool


class _Losses(logging.Handler):
    """Keeps the last connection that was lost: the client says so in its log alone, and tries on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last: _Lost | None = None

    def emit(self, record: logging.LogRecord) -> None:
        match record.args:
            case (*said, Exception() as error):
                greeted = "broker_version=unknown" not in str(said[0] if said else "")
                self._last = _Lost(time.monotonic(), error, greeted)

    def since(self, started: float) -> _Lost | None:
        return self._last if self._last is not None and self._last.at_s >= started else None


_losses = _Losses()
_connections = logging.getLogger("kafka.net.connection")
_connections.setLevel(logging.ERROR)
_connections.addHandler(_losses)
_connections.propagate = False


class _Unresolved(logging.Handler):
    """Keeps the last name that did not resolve: the client says so in its log alone, and raises no more than that."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.name_of: tuple[float, str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if failed := re.match(r"DNS lookup failed for (.+:[0-9]+), ", record.getMessage()):
            self.name_of = time.monotonic(), failed[1]


_unresolved = _Unresolved()
_names = logging.getLogger("kafka.net.inet")
_names.setLevel(logging.WARNING)
_names.addHandler(_unresolved)
_names.propagate = False


def sent_nowhere(settings: KafkaSettings, within_s: float = 120.0) -> str | None:
    """Explain that a broker answers but redirects its clients to a name that this machine cannot resolve; None if
    that has not happened recently."""
    server = _unresolved.name_of
    own = {f"{host}:{port}" for host, port in settings.addresses}
    if server is None or time.monotonic() - server[0] > within_s or server[1] in own:
        return None
    return (
        f"a Kafka broker answers at {settings.bootstrap_servers} and sends its clients on to {server[1]}, a name that "
        "does not resolve on this machine; set the broker's advertised.listeners to an address that clients reach, or "
        "make the name known here (/etc/hosts, DNS)"
    )


def require_answer(settings: KafkaSettings) -> None:
    """Wait for a broker's answer, up to the time-out of new connections.

    Raises BrokerAway naming the address, how long it was tried and what to try.
    """
    started = time.monotonic()
    while not any(_open(address) for address in settings.addresses):
        if time.monotonic() - started > settings.connect_timeout_s:
            unknown = [host for host, port in settings.addresses if not _resolves(host, port)]
            why = f" ({', '.join(unknown)}: no such name on this machine)" if unknown else ""
            raise BrokerAway(
                f"no Kafka broker answers at {settings.bootstrap_servers}{why} (tried {settings.connect_timeout_s:g} "
                "s); start it, set `kafka.bootstrap_servers` to the HOST:PORT of one that runs, or leave that out: a "
                "run then starts a broker of its own"
            )
        time.sleep(0.1)


def connect(settings: KafkaSettings, client: Callable[..., Client], **options: Any) -> Client:
    """Connect a client to a broker that answers. Its port is waited for first: a client made while the broker is still
    starting can sit in one call for its whole time-out.

    Raises BrokerAway as `require_answer` does; NotAdmitted where a broker answered and does not accept the user, its
    password or the certificates; StreamingError where it accepts no connection; and what `client_security` raises.
    """
    security = _security(settings)
    Unpacking.most_bytes = max(Unpacking.most_bytes, unpacking.most_bytes(settings.max_message_bytes))
    require_answer(settings)
    started, addresses = time.monotonic(), settings.addresses
    try:
        return client(
            bootstrap_servers=[f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses],
            bootstrap_timeout_ms=round(settings.connect_timeout_s * 1000),
            request_timeout_ms=round(settings.request_timeout_s * 1000),
            reconnect_backoff_max_ms=1000,
            **security,
            **options,
        )
    except (KafkaError, OSError) as error:  # OSError: of a file with certificates or a key
        lost = _losses.since(started) or _Lost(started, error, greeted=False)
        if (words := _not_admitted(settings, lost)) is not None:
            raise NotAdmitted(words) from error
        if (words := sent_nowhere(settings)) is not None:
            raise BrokerAway(words) from error
        raise (BrokerAway if no_answer(error) else StreamingError)(
            f"{settings.bootstrap_servers} is open, but no Kafka client gets through ({error!r}); see that it is a "
            "Kafka broker, and that `security` (TLS, SASL) is what it asks for"
        ) from error


class _TokenProvider(AbstractTokenProvider):
    """`Tokens` as the client knows them."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:
        return self._tokens.token()


def _security(settings: KafkaSettings) -> dict[str, Any]:
    """Security settings in the client's words. What is wrong with a secret is found here, not once it is asked for."""
    security = settings.client_security()
    if (tokens := settings.oauth_tokens) is not None:
        tokens.token()
        del security[OAUTH_TOKEN]
        security["sasl_oauth_token_provider"] = _TokenProvider(tokens)
    return security


@contextmanager
def explained(settings: KafkaSettings, doing: str, needs: Right | None = None) -> Iterator[None]:
    """Convert the client's errors into BrokerAway, or into StreamingError if the broker answered with a refusal,
    with the operation, the address and a remedy. `needs`: the right that this takes; BadInput where it is missing."""
    try:
        yield
    except AuthorizationError as error:
        if needs is None:
            raise StreamingError(f"{doing} at {settings.bootstrap_servers} is not allowed: {error!r}") from error
        raise concerned(needs, error).missing(settings) from error
    except KafkaError as error:
        failed = f"{doing} at {settings.bootstrap_servers} failed: {error!r}"
        if no_answer(error):
            if (words := sent_nowhere(settings)) is not None:
                raise BrokerAway(f"{doing}: {words}") from error
            raise BrokerAway(f"{failed}; see that it runs, then try again") from error
        raise StreamingError(f"{failed}; it answered, and refused") from error


def _not_admitted(settings: KafkaSettings, lost: _Lost) -> str | None:
    """User or certificate that the broker refused, and why, in one line; None if it is not known."""
    where, security, text = settings.bootstrap_servers, settings.security, " ".join(str(lost.error).split())
    protocol = str(security.get("security_protocol", "PLAINTEXT"))
    refused = isinstance(lost.error, SaslAuthenticationFailedError | UnsupportedSaslMechanismError)
    if isinstance(lost.error, IllegalSaslStateError):  # it asks for no password
        return None
    if OAUTH_TOKEN in security and protocol.startswith("SASL") and (refused or lost.greeted):
        return (
            f"{where} does not admit the token of kafka.security.{OAUTH_TOKEN} ({written(security[OAUTH_TOKEN])}): "
            f"{text}; see that it is a token for this broker, and is renewed before it expires"
        )
    if protocol.startswith("SASL") and (refused or lost.greeted):
        return (
            f"{where} does not admit the user `{security.get('sasl_plain_username')}` with this password "
            f"({security.get('sasl_mechanism')}: {text}); check kafka.security.sasl_plain_username, sasl_mechanism and "
            f"sasl_plain_password ({written(security.get('sasl_plain_password'))})"
        )
    if protocol.endswith("SSL") and (isinstance(lost.error, OSError) or "Handshake failed" in text):
        return (
            f"{where} and this machine agree on no TLS connection ({text}); see that TLS is what it asks for, "
            "and check kafka.security.ssl_cafile, who signed its certificate, and ssl_certfile and ssl_keyfile, by "
            "which the broker is to know us"
        )
    return None


def concerned(right: Right, error: BaseException) -> Right:
    """The right restricted to the topics that `error` names."""
    named = error.args[0] if error.args else None
    return replace(right, names=named) if isinstance(named, set) and named else right


def codecs_missing() -> dict[str, str]:
    """Kafka codecs that fail a round trip on this machine, each with the package it needs.

    >>> codecs_missing()
    {}
    """
    packages = {"gzip": "Python's gzip module", "snappy": "pyarrow", "lz4": "lz4", "zstd": "zstandard"}
    missing, sample = {}, b"impressions " * 100
    for name, package in packages.items():
        try:
            works = getattr(codecs, f"{name}_decode")(getattr(codecs, f"{name}_encode")(sample)) == sample
        except Exception as error:
            missing[name] = f"the package {package} is missing or broken ({error!r})"
        else:
            if not works:
                missing[name] = f"the package {package} is broken: other bytes came back"
    return missing


def no_answer(error: BaseException) -> bool:
    """True if the client gave up waiting, as far as `error` tells; a refusal is an answer.

    >>> no_answer(RetriableError()), no_answer(OffsetOutOfRangeError())
    (True, False)
    """
    return isinstance(error, RetriableError) or not isinstance(error, BrokerResponseError | LogTruncationError)


def raw_message(record: Any) -> RawMessage:
    """Convert a record of the client to our message."""
    return RawMessage(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value or b"",
        tuple(record.headers),
        None if record.value is not None else unpacking.stands_in(record.headers),
        record.leader_epoch,
    )


def to_kafka(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Convert our partitions to the client's.

    >>> to_kafka([Partition("ads", 1)])
    [TopicPartition(topic='ads', partition=1)]
    """
    return [TopicPartition(*partition) for partition in partitions]


def from_kafka(offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    """Convert the client's offsets to our partitions.

    >>> from_kafka({TopicPartition("ads", 1): 7})
    {Partition(topic='ads', partition=1): 7}
    """
    return {Partition(*key): offset for key, offset in offsets.items()}


def _resolves(host: str, port: int) -> bool:
    try:
        return bool(socket.getaddrinfo(host, port))
    except OSError:
        return False


def _open(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False
