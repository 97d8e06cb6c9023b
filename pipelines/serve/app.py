"""The HTTP interface of a model store: an ASGI application for any server.

    POST /v1/models/NAME:predict     GET /v1/models   /healthz   /readyz   /metrics   /openapi.json

With a token, all but the two checks of health ask for it.
A request is answered by the version that answers when its body has been read, named in the response. Scoring takes the
event loop's thread: a process uses one core, and requests take turns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pyarrow as pa
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pipelines.core.access import NO_TOKEN, Access, bearer
from pipelines.serve.interface import openapi
from pipelines.serve.logged import LOGGED, ServedLog
from pipelines.serve.metrics import ServingMetrics
from pipelines.serve.model_store import ModelStore
from pipelines.serve.prediction_request import ARROW, Unreadable, parse_request
from pipelines.serve.version import Answer, ServedVersion
from streaming.messages.ipc import write_ipc

VERSION_HEADER = "x-exfm-version"
SHOWN = 20
"""At most so many refused rows are listed; all are counted."""

access = logging.getLogger("exfm.access")
log = logging.getLogger(__name__)


_Endpoint = Callable[[Request], Awaitable[Response]]


class RequestLimits(NamedTuple):
    """Limits of one request."""

    max_bytes: int = 8 << 20
    max_rows: int = 4096
    body_s: float = 5.0


class _Refused(Exception):
    """A request that gets no prediction: the HTTP code, why, and how many of its `rows` are refused."""

    def __init__(self, code: int, why: str, rows: int = 0, **more: Any) -> None:
        super().__init__(why)
        self.code, self.rows, self.more = code, rows, more


class Server:
    """The application's state; `app` is what a server runs."""

    def __init__(
        self,
        model_store: ModelStore,
        limits: RequestLimits = RequestLimits(),
        served_log: ServedLog | None = None,
        access: Access = Access(),
    ) -> None:
        self._model_store, self._limits, self._log, self._access = model_store, limits, served_log, access
        self.served_metrics = ServingMetrics(model_store, served_log)
        self.app = Starlette(
            routes=[
                Route("/v1/models/{model}:predict", self._guarded(self.predict), methods=["POST"]),
                Route("/v1/models", self._guarded(self.models)),
                Route("/healthz", lambda request: PlainTextResponse("ok\n")),
                Route("/readyz", self.ready),
                Route("/metrics", self._guarded(self.metrics)),
                Route("/openapi.json", self._guarded(self.openapi)),
            ],
            exception_handlers={404: _no_such_path, 405: _no_such_path},
        )

    def _guarded(self, endpoint: _Endpoint) -> _Endpoint:
        """An endpoint that asks for the token, where there is one."""
        if self._access.token is None:
            return endpoint

        async def guarded(request: Request) -> Response:
            if self._access.admits(bearer(request.headers.get("authorization", ""))):
                return await endpoint(request)
            return JSONResponse({"error": NO_TOKEN}, 401, {"www-authenticate": "Bearer"})

        return guarded

    def close(self) -> None:
        """Stop following, and flush the log."""
        self._model_store.close()
        if self._log is not None:
            self._log.close()

    async def predict(self, request: Request) -> Response:
        began, model = time.perf_counter(), request.path_params["model"]
        rows = refused = 0
        version = ""
        try:
            answer, served = await self._answered(request, model)
            rows, refused, version = len(answer.probabilities), len(answer.refusals), served.name
            response = _response(answer, served, request)
            if served.value is not None:
                self._model_store.freshness[model].answered(served.value, time.time())
        except _Refused as no:
            refused = no.rows
            response = JSONResponse({"error": str(no), **no.more}, no.code)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:  # one request's trouble is no one else's
            log.exception("answering a request for %s", model)
            response = JSONResponse({"error": "the server failed on this request; its log says why"}, 500)
        seconds = time.perf_counter() - began
        self.served_metrics.note(
            model if model in self._model_store else "?", response.status_code, seconds, rows, refused
        )
        if access.isEnabledFor(logging.INFO):
            line = {"at": time.time(), "model": model, "version": version, "code": response.status_code}
            access.info(json.dumps(line | {"rows": rows, "refused": refused, "ms": round(1000 * seconds, 3)}))
        return response

    async def _answered(self, request: Request, model: str) -> tuple[Answer, ServedVersion]:
        if model not in self._model_store:
            known = ", ".join(self._model_store.models)
            raise _Refused(404, f"no model is named `{model[:80]}`; choose from {known}")
        body = await self._body(request)
        version = self._model_store.version(model)
        if version is None:
            why = self._model_store.refused(model) or "no version of it is published yet"
            raise _Refused(503, f"`{model}` cannot answer: {why}")
        try:
            kind, names = request.headers.get("content-type", ""), version.inputs.names
            if self._log is not None:
                names = [*names, *LOGGED]
            asked = parse_request(body, kind, only=names, max_rows=self._limits.max_rows)
        except Unreadable as error:
            raise _Refused(400, str(error)) from None
        asked = version.completed(asked, int(time.time() * 1000))
        answer = version.answer(asked)
        if answer.refusals and request.query_params.get("on_bad_rows") != "null":
            found = [{"row": row, "why": answer.refusals[row].detail} for row in sorted(answer.refusals)[:SHOWN]]
            words = (
                f"{len(answer.refusals):,} of {asked.size:,} rows are refused, as ingestion would refuse them; "
                "correct them, or add ?on_bad_rows=null for null in their place"
            )
            raise _Refused(422, words, len(answer.refusals), refused=found)
        if self._log is not None:
            self._log.note(version, asked, answer)
        return answer, version

    async def _body(self, request: Request) -> bytes:
        """The whole body, within its limits."""
        most = self._limits.max_bytes
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_s):  # no task of its own, as wait_for has
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise _Refused(413, f"the body is longer than {most:,} bytes; send fewer rows at a time")
                    parts.append(part)
        except TimeoutError:
            raise _Refused(408, f"the body did not arrive within {self._limits.body_s:g} s") from None
        return b"".join(parts)

    async def models(self, request: Request) -> Response:
        """List the served models with their versions and ages, and refused ones."""
        found = []
        for model in self._model_store.models:
            version, refused = self._model_store.version(model), self._model_store.refused(model)
            value: dict[str, Any] = {"model": model, "version": None} if version is None else version.as_json()
            if version is not None:
                value["age_s"] = round(time.time() - version.loaded_at, 1)
                if version.value is not None:
                    value["freshness"] = self._model_store.freshness[model].as_json()
            found.append(value | ({"refused": refused} if refused is not None else {}))
        return JSONResponse({"models": found})

    async def ready(self, request: Request) -> Response:
        if missing := self._model_store.missing:
            return PlainTextResponse(f"not ready: {', '.join(missing)}\n", 503)
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        text = self.served_metrics.text()
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi(self._model_store, with_token=self._access.token is not None))


PATHS = "POST /v1/models/NAME:predict; GET /v1/models, /healthz, /readyz, /metrics, /openapi.json"


async def _no_such_path(request: Request, error: Exception) -> Response:
    path = request.url.path.encode(errors="replace").decode()[:80]
    code = getattr(error, "status_code", 404)
    return JSONResponse({"error": f"{request.method[:20]} {path} is not here; choose from {PATHS}"}, code)


def _response(answer: Answer, version: ServedVersion, request: Request) -> Response:
    """In the form of the request, or as its `Accept` asks."""
    headers = {VERSION_HEADER: version.name}
    if ARROW in (_accepted(request) or request.headers.get("content-type", "")):
        columns = {task: pa.array(answer.probabilities[:, t], from_pandas=True) for t, task in enumerate(version.tasks)}
        return Response(write_ipc(pa.RecordBatch.from_pydict(columns)), media_type=ARROW, headers=headers)
    rows = answer.probabilities.tolist()
    predictions: list[dict[str, float] | None] = [dict(zip(version.tasks, row, strict=True)) for row in rows]
    for row in answer.refusals:
        predictions[row] = None
    value: dict[str, Any] = {"model": version.model, "version": version.name, "predictions": predictions}
    if answer.refusals:
        value["refused"] = [{"row": row, "why": why.detail} for row, why in sorted(answer.refusals.items())[:SHOWN]]
    return JSONResponse(value, headers=headers)


def _accepted(request: Request) -> str:
    """Media type that the client wants; empty if it takes anything."""
    accepted = request.headers.get("accept", "")
    return "" if "*/*" in accepted else accepted
