"""Secrets: passwords and tokens that a config refers to and that no file of ours ever contains.

    {env: NAME}                 an environment variable
    {file: PATH}                the text of a file
    {command: [pass, kafka]}    what a program prints

They are read anew for every connection, so that a password may change while a run is up. A plain text is taken too,
held in memory alone; wherever settings are written it is `{redacted: true}`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from streaming.errors import BadInput, StreamingError
from streaming.kafka.tokens import OAUTH_TOKEN

SECRET_KEYS = ("sasl_plain_password", "ssl_password", OAUTH_TOKEN)
"""The settings under `kafka.security` that are secret: the password of SASL, that of the TLS key, an OAuth token."""

WAYS = "{env: NAME}, {file: PATH} or {command: [PROGRAM, ARGUMENT, …]}"
COMMAND_S = 30.0
"""How long a command may take to print a secret."""


class SecretFrom(BaseModel):
    """Source of a secret: exactly one of the fields.

    >>> SecretFrom(env="HOME").read("password") == os.environ["HOME"]
    True
    >>> SecretFrom(command=("printf", "s3cret")).read("password")
    's3cret'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str | None = Field(default=None, description="an environment variable")
    file: str | None = Field(default=None, description="a file with the secret; a relative path begins at the config")
    command: tuple[str, ...] | None = Field(default=None, description="a program that prints it, and its arguments")
    redacted: bool | None = Field(default=None, description="written by a run in place of a plain text; to be given")

    @model_validator(mode="after")
    def _one_way(self) -> SecretFrom:
        if len(self.model_fields_set & {name for name, value in self if value}) != 1:
            raise ValueError("none, or more than one")
        return self

    def read(self, setting: str) -> str:
        """The secret; `setting` names it in errors. Raises BadInput where it is not there, StreamingError where the
        command failed, which another try may mend."""
        if self.env is not None:
            secret_text = os.environ.get(self.env)
            if secret_text is None:
                raise BadInput(
                    f"{setting} is read from the environment variable {self.env}, which is not set; set it where exfm "
                    "is started, and on a Ray cluster where its nodes are"
                )
        elif self.file is not None:
            secret_text = _content(self.file, setting)
        elif self.command is not None:
            secret_text = _printed(self.command, setting)
        else:
            raise BadInput(
                f"{setting} was given as plain text, and a run stores no password: give it again, as "
                f"`--set '{setting}={{env: NAME}}'` ({WAYS}), or start from the config that has it"
            )
        if not secret_text:
            raise BadInput(f"{setting} is empty where it is read from ({self.model_dump(exclude_none=True)})")
        return secret_text


def secret(value: Any) -> SecretStr | SecretFrom:
    """A secret as a config has it: plain text, or where to read it. Raises ValueError, which never quotes it."""
    if isinstance(value, SecretStr | SecretFrom):
        return value
    if isinstance(value, str | int) and not isinstance(value, bool):
        return SecretStr(str(value))
    try:
        return SecretFrom.model_validate(value)
    except ValidationError:
        raise ValueError(f"give exactly one of {WAYS}; or a text, in quotes") from None


def written(value: Any) -> Any:
    """A value of `security` as it may be written down.

    >>> written(SecretStr("s3cret")), written(SecretFrom(env="KAFKA_PASSWORD")), written("SSL")
    ({'redacted': True}, {'env': 'KAFKA_PASSWORD'}, 'SSL')
    """
    if isinstance(value, SecretStr):
        return {"redacted": True}
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, SecretFrom) else value


def read_secrets(security: Mapping[str, Any]) -> dict[str, Any]:
    """`security` with the secrets read in, for the Kafka client only. Raises as `SecretFrom.read` does."""
    plain = dict(security)
    for name, value in security.items():
        if isinstance(value, SecretStr):
            plain[name] = value.get_secret_value()
        elif isinstance(value, SecretFrom):
            plain[name] = value.read(f"kafka.security.{name}")
    return plain


def _content(path: str, setting: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise BadInput(f"{setting} is read from the file {path}: {words}; put the secret there") from None


def _printed(command: tuple[str, ...], setting: str) -> str:
    what = f"{setting} is what `{command[0]}` prints, and it"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    except OSError as error:
        raise BadInput(f"{what} cannot be run: {error.strerror}; give a program and its arguments as a list") from None
    except subprocess.TimeoutExpired:
        raise StreamingError(f"{what} did not end within {COMMAND_S:g} s; it must not ask for anything") from None
    if done.returncode:
        last_line = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise StreamingError(f"{what} ended with code {done.returncode}; it said: {last_line[:200]}")
    return done.stdout.decode(errors="replace").removesuffix("\n").removesuffix("\r")
