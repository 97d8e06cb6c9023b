"""moto's S3 server: a second one, by other people, that shares no misreading of the protocol with `s3_server`.

with MotoServer() as server:
    environment = server.environment        # for boto3 and delta-rs; the bucket is there
"""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request

from streaming.ports import free_port
from tests.support.s3_server import BUCKET
from tests.support.waiting import eventually

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}


class MotoServer:
    """Its process, until the end of the context."""

    def __enter__(self) -> MotoServer:
        port = free_port()
        self.environment = {**KEYS, **REGION, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(self._has_a_bucket, look_s=0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _has_a_bucket(self) -> bool:
        assert self._process.poll() is None
        bucket = f"{self.environment['AWS_ENDPOINT_URL']}/{BUCKET}"
        try:
            urllib.request.urlopen(urllib.request.Request(bucket, b"", method="PUT")).close()
        except urllib.error.URLError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
