"""Objects in a bucket of S3, or of another store that speaks its protocol. The only file that imports boto3.

Credentials, region and endpoint come from where AWS's own tools take them: `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`,
`~/.aws`, the machine's or the pod's role, `AWS_ENDPOINT_URL`. Nothing of that is ever in a config.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.errors import BadInput, StreamingError
from streaming.store.objects import StoredObject, md5_of

if TYPE_CHECKING:
    from botocore.client import BaseClient

ATTEMPTS = 10
"""Of a request: what fails with 500, 503 or in between is tried again after a growing pause."""
IN_PARTS_BYTES = 64 * 2**20
"""Larger files are put in parts of this size, which become one object at once or not at all."""
CONFLICTS = 5
"""Puts of others that may be undecided while an object is put if it is absent."""
AT_ONCE = 1000
"""Keys of one request to delete."""

_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "Forbidden"}
_MISSING = {"NoSuchKey", "404", "NotFound"}


class S3Store:
    """Objects below `prefix` in `bucket`."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self.url = f"s3://{bucket}/{prefix}"

    def read(self, key: str) -> bytes:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        with self._named(key):
            for attempt in range(1, ATTEMPTS + 1):
                body = self._client.get_object(Bucket=self._bucket, Key=self._key(key))["Body"]
                try:
                    content: bytes = body.read()
                    break
                except (HTTPClientError, IncompleteReadError):  # the answer was cut off: boto3 does not try that again
                    if attempt == ATTEMPTS:
                        raise
        return content

    def fetch(self, key: str, path: Path) -> None:
        with self._named(key):
            self._client.download_file(self._bucket, self._key(key), str(path), Config=_transfer())

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        token: dict[str, str] = {}
        while True:
            with self._named(prefix):
                page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._key(prefix), **token)
            now = _date_of(page)
            for each in page.get("Contents", ()):
                age_s = (now - each["LastModified"]).total_seconds()
                key = each["Key"].removeprefix(f"{self._prefix}/")
                yield StoredObject(key, each["Size"], each["ETag"].strip('"'), age_s)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def put(self, key: str, content: bytes | Path) -> str:
        with self._named(key):
            if isinstance(content, Path) and content.stat().st_size > IN_PARTS_BYTES:
                self._client.upload_file(str(content), self._bucket, self._key(key), Config=_transfer())
                answer = self._client.head_object(Bucket=self._bucket, Key=self._key(key))
            else:
                body = content if isinstance(content, bytes) else content.read_bytes()
                answer = self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=body)
        return str(answer["ETag"]).strip('"')

    def tag_of(self, path: Path) -> str:
        """MD5 of the content or, where that is put in parts, MD5 of the parts' MD5s with their number."""
        if path.stat().st_size <= IN_PARTS_BYTES:
            return md5_of(path)
        with path.open("rb") as file:
            parts = [md5(part, usedforsecurity=False).digest() for part in iter(lambda: file.read(IN_PARTS_BYTES), b"")]
        return f"{md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Put the object unless there is one. An answer that was lost makes the next attempt find our own content."""
        from botocore.exceptions import ClientError

        for attempt in range(CONFLICTS):
            with self._named(key):
                try:
                    self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=content, IfNoneMatch="*")
                except ClientError as error:
                    if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
                        raise
                    try:
                        return self.read(key) == content
                    except FileNotFoundError:  # of another put that is not decided yet (409)
                        time.sleep(0.1 * 2**attempt)
                        continue
            return True
        raise StreamingError(f"{self._key(key)}: puts of others have been in the way {CONFLICTS} times; try again")

    def delete(self, keys: Iterable[str]) -> None:
        keys = [self._key(key) for key in keys]
        for first in range(0, len(keys), AT_ONCE):
            named = [{"Key": key} for key in keys[first : first + AT_ONCE]]
            with self._named(keys[first]):
                self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": named, "Quiet": True})

    def delta_options(self) -> dict[str, str]:
        """Storage options of delta-rs beyond those that it finds where we do: endpoint and region of a profile."""
        meta = self._client.meta
        options = {"aws_conditional_put": "etag", "aws_region": meta.region_name or "us-east-1"}
        options |= {"max_retries": "5", "retry_timeout": "30s"}  # who commits looks at the table, and tries again
        if not meta.endpoint_url.endswith("amazonaws.com"):
            plain = str(meta.endpoint_url.startswith("http://")).lower()
            options |= {"aws_endpoint_url": meta.endpoint_url, "allow_http": plain}
        return options

    @property
    def _client(self) -> BaseClient:
        return client_of(os.getpid())

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Errors in words: what was asked, what the store said, what to do."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        where = f"{self.url}/{key}".rstrip("/")
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BadInput(
                f"no credentials for {self.url} ({error}): they come from the usual chain of AWS, never from a config; "
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role"
            ) from None
        except ClientError as error:
            code, said = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if code in _MISSING:
                raise FileNotFoundError(where) from None
            if code == "NoSuchBucket":
                raise BadInput(
                    f"{self.url}: there is no bucket `{self._bucket}`; make it first, or name another"
                ) from None
            if code in _REFUSED:
                raise BadInput(
                    f"{where}: refused ({code}: {said}); these credentials need GetObject, PutObject, DeleteObject and "
                    f"ListBucket on `{self._bucket}`"
                ) from None
            raise StreamingError(f"{where}: the store answered {code}: {said}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise StreamingError(
                f"{where}: the store cannot be reached ({error}); check the network and try again"
            ) from error


@lru_cache(maxsize=1)
def client_of(process: int) -> Any:
    """The client of this process; one that was forked makes its own."""
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{error.name} is not installed, and a run on s3:// needs it; install the packages of requirements/cpu.txt"
        ) from None
    retries: Any = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    config = Config(retries=retries, connect_timeout=10, read_timeout=60, max_pool_connections=16)
    return boto3.session.Session().client("s3", config=config)


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=IN_PARTS_BYTES, multipart_chunksize=IN_PARTS_BYTES, max_concurrency=4)


def _date_of(answer: Any) -> datetime:
    """The store's clock, as its answer says."""
    text = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return datetime.now(UTC) if text is None else parsedate_to_datetime(text).astimezone(UTC)
