"""Source of a model in MLflow's registry: `models:/demo-feed@champion` follows the alias; `/3` is that version
permanently."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from pipelines.core.config.text import choices
from pipelines.serve.sources.model_source import LOOK_EVERY_S, DesiredVersion
from pipelines.track.mirror import tables_stated
from pipelines.track.mlflow import RegisteredModels
from streaming.errors import BadInput
from streaming.schema import RowSchema

MODEL_URI = re.compile(r"models:/(?P<model>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<number>[0-9]+))")


class RegisteredSource:
    """A model of MLflow: `models:/NAME@ALIAS` or `models:/NAME/N`. The files of a version are copied here, into a
    folder that goes with this, however it ends."""

    look_every_s = LOOK_EVERY_S

    def __init__(self, models: RegisteredModels, uri: str) -> None:
        """Raises BadInput where that is no such address, or the registry has no such model."""
        found = MODEL_URI.fullmatch(uri)
        if found is None:
            raise BadInput(f"`{uri}` names no registered model; models:/NAME@ALIAS or models:/NAME/N does")
        self.model, self._uri = found["model"], uri
        self._models, self._alias = models, found["alias"]
        self._number = None if found["number"] is None else int(found["number"])
        self._folder = tempfile.TemporaryDirectory(prefix="exfm-models-", ignore_cleanup_errors=True)
        self._copies = Path(self._folder.name)
        self._held: tuple[int, DesiredVersion] | None = None
        known = models.names()
        if self.model not in known:
            there = choices(self.model, set(known)) if known else "it has none; give --tracking-uri"
            raise BadInput(f"{models.uri} has no model `{self.model}`; {there}")

    def wanted(self) -> DesiredVersion | None:
        version = self._models.version(self.model, self._alias, self._number)
        if version is None:
            return None
        if self._held is None or self._held[0] != version.number:
            if self._held is not None:
                shutil.rmtree(self._copies / str(self._held[0]), ignore_errors=True)  # it is in memory
            path, settings = self._models.files(self.model, version.number, self._copies / str(version.number))
            if "rows" not in settings:
                raise ModelError(f"{self._uri} has no schema of its rows (exfm 0.1 kept none); register it again")
            published: dict[str, Any] = {"at": version.at, "tags": version.tags}
            if (stated := tables_stated(version.tags)) is not None:
                published["tables"] = stated
            about = {"follows": self._uri, "published": published}
            schema = RowSchema.model_validate(settings["rows"])
            self._held = version.number, DesiredVersion(str(version.number), path, schema, about)
        return self._held[1]

    def close(self) -> None:
        self._folder.cleanup()
