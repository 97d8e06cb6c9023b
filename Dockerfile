# An image with the pinned packages and exfm, for one's own registry:
#
#   docker build -t exfm:1 .                                   # --build-arg LIST=cuda for machines with an NVIDIA driver
#   docker run --rm -v "$PWD/runs:/runs" --no-healthcheck exfm:1 stream demo --until-end --run-dir demo
#   docker run --rm -v "$PWD/runs:/runs" -e EXFM_TOKEN -p 8080:8080 exfm:1 serve --run-dir demo --host 0.0.0.0
#
# Only files whose hashes are in the list are installed. The user is not root; /runs is its folder.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY requirements/cpu.txt requirements/cpu.txt
RUN sed -n '/^setuptools==/,/[^\\]$/p' requirements/cpu.txt > setuptools.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r setuptools.txt
COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG LIST=cpu
RUN useradd --create-home --uid 1000 exfm && install -d -o exfm -g exfm /runs
COPY requirements/${LIST}.txt /tmp/list.txt
RUN pip install --no-cache-dir --no-deps --require-hashes -r /tmp/list.txt && rm /tmp/list.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl
USER exfm
WORKDIR /runs
# The embedded broker, for runs without a Kafka of their own.
RUN exfm broker fetch
ENV OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
EXPOSE 8080
# Of `exfm serve` over HTTP at its usual port; other commands: docker run --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=3)"]
ENTRYPOINT ["exfm"]
CMD ["--help"]
