"""MLflow: one run per worker, registered models, lineage. The only import of mlflow.

Everything is queued and written by one thread in batches, never by a training thread (MLflow on SQLite takes about
40 calls a second). A store that is slow, unreachable or lost costs metrics, never training: the queue is bounded,
entries that do not fit are counted in `dropped` (each metric value counts), and `problem` is the last error.

MLflow takes seconds of a core to import and to make its tables, while the workers of a run start. So its thread begins
when there is more to write than settings, which wait for `settings_wait_s` at most.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from exfm.errors import ModelError
from pipelines.served_rows import ON_BAD_ROWS, RAISE
from pipelines.track.deleted import experiment_id, is_gone, still_there
from pipelines.track.mirror import Mirror, lineage_tags, state_decisions, unpublished
from pipelines.track.registration import Interface, Registration
from pipelines.track.wheel import Environment, EnvironmentOnce
from streaming.errors import BadInput, StreamingError
from streaming.store.files import move_to_new_name, read_json, share_blocks, write_bytes, write_json

METRICS_PER_CALL = 500
LOADER = "pipelines.served_model"  # a name that registered models store: it stays
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}  # MLflow's own: minutes
SCHEME = "sqlite:///"
_PASSWORD = re.compile(r"://[^\s]*@")

log = logging.getLogger(__name__)


class Tracker:
    """Queue before an MLflow store.

    `runs` (a file) stores the MLflow run of every worker, so that a resumed run continues in the same ones.
    """

    def __init__(
        self,
        uri: str,
        artifacts: Path,
        experiment: str,
        runs: Path,
        interval_s: float = 5.0,
        queue_entries: int = 20_000,
        settings_wait_s: float = 20.0,
    ) -> None:
        self.dropped = 0
        self.problem: str | None = None
        self.uri = uri
        self._artifacts = artifacts
        self._experiment = experiment
        self._runs_file = runs
        self._run_ids: dict[str, str] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._interval_s = interval_s
        self._queue: queue.Queue[Callable[[Any], None]] = queue.Queue(queue_entries)
        self._bound = queue_entries
        self._settings_wait_s = settings_wait_s
        self._metrics: dict[str, list[tuple[str, float, int, int]]] = {}
        self._environment = EnvironmentOnce()
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def params(self, worker: str, values: dict[str, Any]) -> None:
        self._put(lambda client: self._log_params(client, worker, values), due=False)

    def metrics(self, worker: str, step: int, values: dict[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        with self._lock:
            rows = self._metrics.setdefault(worker, [])
            if len(rows) + len(values) > self._bound:
                self.dropped += len(values)
                return
            rows += [(key, value, now, step) for key, value in values.items()]
        self._due.set()

    def artifact(self, worker: str, path: Path) -> None:
        self._put(lambda client: client.log_artifact(self._run(client, worker), str(path)))

    def register(self, worker: str, registration: Registration, mirror: Mirror | None = None) -> None:
        """Register the next versions of a model; `mlflow.pyfunc` loads them. `mirror` knows them from then on."""
        self._put(lambda client: self._register(client, worker, registration, mirror))

    def mirror(self, worker: str, mirror: Mirror) -> None:
        """Update a registered model from its ledger; `mirror.file` shows when that is done."""
        self._put(lambda client: self._mirror(client, worker, mirror))

    def finish(self, worker: str, status: str = "FINISHED") -> None:
        self._put(lambda client: client.set_terminated(self._run(client, worker), status))

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def close(self, wait_s: float = 60.0) -> None:
        """Flush the queue and stop; gives up after `wait_s`, and counts the lost entries."""
        self._closing.set()
        self._due.set()
        self._thread.join(wait_s)
        with self._lock:
            waiting = self._queue.qsize() + sum(map(len, self._metrics.values()))
        self.dropped += waiting
        if not self._thread.is_alive():
            self._environment.close()
        else:
            words = f"MLflow at {self.uri} did not take the last {waiting} entries within {wait_s:g} s"
            self.problem = f"{words} ({self.problem})" if self.problem else words

    # --- the tracking thread -----------------------------------------------------------------------------------

    def _put(self, write: Callable[[Any], None], *, due: bool = True) -> None:
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self.dropped += 1
        if due:
            self._due.set()

    def _work(self) -> None:
        self._due.wait(self._settings_wait_s)
        client = None
        flushed = time.monotonic()
        while True:
            try:
                if client is None:
                    client = self._connect()
                    self.problem = None
            except Exception as error:  # the store is unreachable: metrics are lost, training continues
                self._explain(error)
                if self._closing.wait(self._interval_s):
                    return
                continue
            closing = self._closing.is_set()
            try:
                write = self._queue.get(timeout=0.05 if closing else 0.5)
            except queue.Empty:
                write = None
            if write is not None:
                self._guard(write, client)
            if closing or time.monotonic() - flushed >= self._interval_s:
                self._flush_metrics(client)
                flushed = time.monotonic()
            if closing and write is None:
                return

    def _guard(self, write: Callable[[Any], None], client: Any, entries: int = 1) -> None:
        try:
            try:
                write(client)
            except Exception as error:
                if not (is_gone(error) and self._forgot_deleted(client)):
                    raise
                write(client)
        except Exception as error:
            self.dropped += entries
            self._explain(error)

    def _forgot_deleted(self, client: Any) -> bool:
        """True if runs were deleted meanwhile: they are begun anew. Raises StreamingError where the experiment was."""
        self._experiment_id = experiment_id(client, self._experiment, self._artifacts)
        before, self._run_ids = self._run_ids, still_there(client, self._run_ids)
        return before != self._run_ids

    def _explain(self, error: Exception) -> None:
        kind = "" if isinstance(error, StreamingError) else f"{type(error).__name__}: "
        words = f"{kind}{str(error).partition(chr(10))[0]}"
        file = self.uri.removeprefix("sqlite:///")
        if file != self.uri and not Path(file).exists():  # an open file is still written, unseen
            words = f"its file is gone; what follows is lost until the run is restarted ({words})"
        self.problem = f"MLflow at {self.uri}: {words}"
        log.warning("%s", self.problem)

    def _connect(self) -> Any:
        import mlflow

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        begin_store(self.uri, mlflow.__version__, lambda uri: mlflow.MlflowClient(uri).search_experiments())
        mlflow.set_tracking_uri(self.uri)
        client = mlflow.MlflowClient(self.uri)
        self._experiment_id = experiment_id(client, self._experiment, self._artifacts)
        self._run_ids = self._earlier_runs(client)
        return client

    def _earlier_runs(self, client: Any) -> dict[str, str]:
        """The MLflow runs of an earlier start, marked as running; those that the store no longer has are left out."""
        runs = still_there(client, read_json(self._runs_file) or {})
        for run_id in runs.values():
            client.update_run(run_id, status="RUNNING")
        return runs

    def _run(self, client: Any, worker: str) -> str:
        if worker not in self._run_ids:
            run = client.create_run(self._experiment_id, run_name=worker, tags={"exfm.worker": worker})
            self._run_ids[worker] = run.info.run_id
            write_json(self._runs_file, self._run_ids)
            if worker in self._settings:  # of one begun anew
                self._log_params(client, worker, self._settings[worker])
        return self._run_ids[worker]

    def _log_params(self, client: Any, worker: str, values: dict[str, Any]) -> None:
        from mlflow.entities import Param

        run_id = self._run(client, worker)
        self._settings[worker] = values
        logged = client.get_run(run_id).data.params
        new = [Param(key, str(value)[:500]) for key, value in values.items() if key not in logged]
        for start in range(0, len(new), 100):
            client.log_batch(run_id, params=new[start : start + 100])

    def _flush_metrics(self, client: Any) -> None:
        from mlflow.entities import Metric

        with self._lock:
            waiting, self._metrics = self._metrics, {}
        for worker, rows in waiting.items():
            for start in range(0, len(rows), METRICS_PER_CALL):
                batch = [Metric(*row) for row in rows[start : start + METRICS_PER_CALL]]
                write = partial(self._log_metrics, worker=worker, batch=batch)
                self._guard(write, client, entries=len(batch))

    def _log_metrics(self, client: Any, worker: str, batch: list[Any]) -> None:
        client.log_batch(self._run(client, worker), metrics=batch)

    def _register(self, client: Any, worker: str, registration: Registration, mirror: Mirror | None) -> None:
        model, run_id = registration.model, self._run(client, worker)
        _make_model(client, model)
        for version in registration.versions:
            uri = _log_model(client, run_id, version.role, version.export, registration, self._environment.get())
            number = client.create_model_version(model, uri, run_id, tags=version.tags).version
            if mirror is not None:
                mirror.note(version.name, number)
            for alias in version.aliases:
                client.set_registered_model_alias(model, alias, number)

    def _mirror(self, client: Any, worker: str, mirror: Mirror) -> None:
        model, ledger, mirrored = mirror.model, mirror.ledger, mirror.known()
        size, entries = ledger.size, ledger.entries()
        if mirrored["bytes"] == size:
            return
        run_id, numbers = self._run(client, worker), mirrored["numbers"]
        _make_model(client, model)
        if new := unpublished(mirror, entries, numbers):
            interface = mirror.interface()
            for entry in new:
                name = entry["version"]
                uri = _log_model(client, run_id, name, ledger.folder(name), interface, self._environment.get())
                number = client.create_model_version(model, uri, run_id, tags=lineage_tags(entry)).version
                numbers[name] = number
                mirror.note(name, number)  # what fails later is not a reason to register it twice
        lost = state_decisions(client, mirror, entries, mirrored["entries"], numbers)
        mirror.store(mirrored | {"bytes": size, "entries": len(entries)})
        if lost is not None:
            self._explain(StreamingError(lost))


class RegisteredVersion(NamedTuple):
    """A version of a registered model. `at`: when it was registered, ISO 8601."""

    number: int
    at: str
    tags: dict[str, str]


class RegisteredModels:
    """Read access to the models of a registry. `uri`: default is MLflow's own, MLFLOW_TRACKING_URI."""

    def __init__(self, uri: str | None = None) -> None:
        """Raises BadInput where the store cannot be reached."""
        import mlflow

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._uri = uri or mlflow.get_tracking_uri()
        self.uri = _PASSWORD.sub("://…@", self._uri)  # as messages have it
        self._client = mlflow.MlflowClient(self._uri)

    def names(self) -> list[str]:
        """Names of the models; raises BadInput if the store cannot be read."""
        try:
            return [model.name for model in self._client.search_registered_models()]
        except Exception as error:  # of SQL, of HTTP, of MLflow
            raise BadInput(f"{self._unread(error)}; give --tracking-uri") from None

    def _unread(self, error: Exception) -> StreamingError:
        """The error of a store that does not answer, without a password: MLflow's own have the address."""
        reason = _PASSWORD.sub("://…@", next(iter(str(error).splitlines()), type(error).__name__))
        return StreamingError(f"the registry at {self.uri} cannot be read ({reason})")

    def version(self, model: str, alias: str | None, number: int | None) -> RegisteredVersion | None:
        """The version with the alias or number; None if there is none. Raises StreamingError where the store does not
        answer."""
        from mlflow.exceptions import MlflowException

        try:
            entry = (
                self._client.get_model_version(model, str(number))
                if alias is None
                else self._client.get_model_version_by_alias(model, alias)
            )
        except Exception as error:
            if isinstance(error, MlflowException) and is_gone(error):
                return None
            raise self._unread(error) from None
        at = datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC).isoformat(timespec="milliseconds")
        return RegisteredVersion(int(entry.version), at, dict(entry.tags))

    def files(self, model: str, number: int, to: Path) -> tuple[Path, dict[str, Any]]:
        """Copy a version's files below `to`; returns the path of the export, and the version's settings. Raises
        ModelError where it is no export of ours, StreamingError where the store does not answer."""
        from mlflow.artifacts import download_artifacts
        from mlflow.models import Model

        to.mkdir(parents=True, exist_ok=True)
        try:
            root = Path(download_artifacts(f"models:/{model}/{number}", dst_path=str(to), tracking_uri=self._uri))
        except Exception as error:
            raise self._unread(error) from None
        flavour = Model.load(str(root)).flavors.get("python_function", {})
        if flavour.get("loader_module") != LOADER:
            raise ModelError(f"version {number} of `{model}` is not a student that exfm registered")
        return root / flavour["data"], flavour.get("config") or {}


def _make_model(client: Any, model: str) -> None:
    if not client.search_registered_models(f"name = '{model}'"):
        client.create_registered_model(model)


def _log_model(
    client: Any, run_id: str, name: str, export: Path, asked: Interface | Registration, environment: Environment
) -> str:
    """The URI of an export as a model of MLflow.

    By the parts of `mlflow.pyfunc.log_model`: as a whole it loads the model to predict its example, and reads the
    history of each of the run's metrics, which takes half of the time.
    """
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    experiment = client.get_run(run_id).info.experiment_id
    logged = client.create_logged_model(experiment, name, source_run_id=run_id)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    with tempfile.TemporaryDirectory(prefix="exfm-model-") as folder:
        local = str(Path(folder) / "model")
        mlflow.pyfunc.save_model(
            local,
            loader_module=LOADER,
            data_path=str(export),
            model_config=asked.settings,
            signature=_signature(asked),
            input_example=asked.example or None,
            code_paths=[str(wheel) for wheel in environment.wheels],
            pip_requirements=environment.requirements,
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                run_id=run_id,
                model_uuid=logged.model_id,
                model_id=logged.model_id,
            ),
        )
        client.log_model_artifacts(logged.model_id, local)
        _share_with_store(logged.artifact_location, export, environment.wheels)
    client.finalize_logged_model(logged.model_id, "READY")
    return f"models:/{logged.model_id}"


def _share_with_store(location: str, export: Path, wheels: Iterable[Path]) -> None:
    """Keep an export and the code once on the disk, where the store's artifacts are files beside them: every version
    holds both."""
    scheme, _, folder = location.partition("://")
    if scheme != "file":
        return
    artifacts = Path(unquote(folder))
    held = [(artifacts / "data" / export.name / file.name, file) for file in export.iterdir()]
    held += [(artifacts / "code" / wheel.name, wheel) for wheel in wheels]
    for copy, original in held:
        if copy.is_file():
            share_blocks(copy, original)


def _signature(registration: Interface | Registration) -> Any:
    """Inputs and outputs of a model, as MLflow shows them.

    MLflow would enforce it before the model sees a row, and refuse what ingestion takes (whole floats and unsigned
    integers as ids, integers as floats, missing integers) in words of its own. So the model says that it checks its
    rows itself: that is what MLflow takes this mark for.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    inputs = Schema([ColSpec(_type(field.type), field.name, not field.nullable) for field in registration.inputs])
    outputs = Schema([ColSpec("double", task) for task in registration.tasks])
    signature = ModelSignature(inputs, outputs, ParamSchema([ParamSpec(ON_BAD_ROWS, "string", RAISE)]))
    signature._is_signature_from_type_hint = True
    return signature


def _type(kind: pa.DataType) -> Any:
    """MLflow's type of a column. A float that Python or JSON writes is a double, whatever the lake keeps of it."""
    from mlflow.types import DataType
    from mlflow.types.schema import Array

    if pa.types.is_list(kind):
        return Array(_type(kind.value_type))
    if pa.types.is_string(kind):
        return DataType.string
    return DataType.double if pa.types.is_floating(kind) else DataType.long


def begin_store(uri: str, version: str, make: Callable[[str], object]) -> None:
    """Copy an empty store to the missing SQLite file named by `uri`. To make its tables takes MLflow 1.5 s of a core,
    to open a copy .03 s; the template is made once per user and version. Other stores are left to MLflow, and this one
    where the folder takes no file. `make(uri)` has MLflow of this `version` make one."""
    file = Path(uri.removeprefix(SCHEME))
    if not uri.startswith(SCHEME) or file.exists() or not file.parent.is_dir():
        return
    copy = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        try:
            copy.write_bytes(_kept(version, make))
            move_to_new_name(copy, file)  # not over a store that another process has begun meanwhile
        finally:
            copy.unlink(missing_ok=True)


def kept_store(version: str) -> Path:
    """Path of the template in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exfm" / f"mlflow-{version}.db"


def _kept(version: str, make: Callable[[str], object]) -> bytes:
    place = kept_store(version)
    if place.exists():
        return place.read_bytes()
    with tempfile.TemporaryDirectory(prefix="exfm-store-") as scratch:
        made, emptied = Path(scratch) / "made", Path(scratch) / "emptied"
        make(f"{SCHEME}{made}")
        with closing(sqlite3.connect(made)) as tables, closing(sqlite3.connect(emptied)) as store:
            tables.backup(store)
            store.execute("DELETE FROM experiments")  # the default one, whose artifacts would lie where this was made
            store.commit()
        content = emptied.read_bytes()
    with suppress(OSError):  # it is made again where it cannot be kept
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, content)
    return content
