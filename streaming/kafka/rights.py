"""Rights on a Kafka cluster with access control, and the command that grants a missing one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings


@dataclass(frozen=True)
class Right:
    """An operation, as `kafka-acls` names it, on topics, a group or the cluster.

    >>> settings = KafkaSettings(bootstrap_servers="kafka:9092", security={"sasl_plain_username": "alice"})
    >>> print(Right("Read", "topic", {"ads"}).missing(settings))
    `alice` has no right to Read topic `ads` at kafka:9092; grant it: kafka-acls --bootstrap-server kafka:9092 --add ...
    """

    operation: Literal["Read", "Write", "Create", "Describe", "DescribeConfigs", "IdempotentWrite"]
    resource: Literal["topic", "group", "cluster"]
    names: Collection[str] = ()

    def missing(self, settings: KafkaSettings) -> BadInput:
        """The error for a missing right: the user, the right, and the command that grants it."""
        user = settings.security.get("sasl_plain_username")
        who = f"`{user}`" if user else "this client"
        names = ", ".join(f"`{name}`" for name in sorted(self.names))
        what = f"{self.resource} {names}".strip() if self.resource != "cluster" else "the cluster"
        options = [f"--{self.resource} {name}" for name in sorted(self.names)] or [f"--{self.resource}"]
        return BadInput(
            f"{who} has no right to {self.operation} {what} at {settings.bootstrap_servers}; grant it: kafka-acls "
            f"--bootstrap-server {settings.bootstrap_servers} --add --allow-principal User:{user or 'NAME'} "
            f"--operation {self.operation} {' '.join(options)}"
        )
