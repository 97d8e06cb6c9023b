"""The node of a Ray of the run's own, without the processes that it does not use.

Ray starts, one after the other, a dashboard (also where it is told to include none: it then has no page), an
autoscaler, and a reader of logs, which are not sent to the driver. They take 1.7 s of a core, 280 MB, and a second to
end.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pipelines.patched import patched


def _no_page(node: Any, **asked: Any) -> None:
    node._webui_url = ""  # what workers are told of it


def _nothing(node: Any) -> None:
    pass


def used_processes_alone(node: type) -> AbstractContextManager[None]:
    """A node (`ray._private.node.Node`) that begins within this has none of them. A release of Ray that begins them
    otherwise has them."""
    return patched(node, start_api_server=_no_page, start_monitor=_nothing, start_log_monitor=_nothing)
