"""A broker with listeners as people set them up by mistake, or on IPv6 alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streaming.broker.broker import LocalBroker
from streaming.ports import free_port


class Listeners(NamedTuple):
    """`plain` and `six` answer under their own address; `nowhere` sends clients on to a name that does not resolve."""

    plain: str
    six: str
    nowhere: str


UNKNOWN = "broker.invalid:9092"


@contextmanager
def odd_listeners(folder: Path) -> Iterator[Listeners]:
    plain, six, nowhere, controller = (free_port() for _ in range(4))
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SIX://[::1]:{six},NOWHERE://127.0.0.1:{nowhere},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SIX://[::1]:{six},NOWHERE://{UNKNOWN}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SIX:PLAINTEXT,NOWHERE:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    broker = LocalBroker(folder / "broker", port=plain, heap_mb=256, properties=properties)
    running = broker.start()
    try:
        yield Listeners(running.bootstrap_servers, f"[::1]:{six}", f"127.0.0.1:{nowhere}")
    finally:
        broker.stop()
