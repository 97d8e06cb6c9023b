"""moto's S3 server: a second one, by other people, that shares no misreading of the protocol with `s3_server`.

with MotoServer() as server:
    environment = server.environment        # for boto3 and delta-rs; the bucket is there
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request

from streaming.ports import free_port
from tests.support.s3_server import BUCKET
from tests.support.waiting import PATIENCE_S

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}


class MotoServer:
    """Its process, until the end of the context."""

    def __enter__(self) -> MotoServer:
        port = free_port()
        self.environment = {**KEYS, **REGION, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        bucket = urllib.request.Request(f"{self.environment['AWS_ENDPOINT_URL']}/{BUCKET}", b"", method="PUT")
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(bucket).close()
                return self
            except urllib.error.URLError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.__exit__()
                    raise
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
