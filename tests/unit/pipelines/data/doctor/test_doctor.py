"""`exfm doctor`: every failure is found, named and given a remedy; a machine that works is found to work."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from pipelines.cli import console as cli
from pipelines.data.doctor import broker, machine, requirements, software
from pipelines.data.doctor import checks as doctor
from pipelines.data.doctor.scope import Scope
from pipelines.data.findings import Finding, Severity
from streaming.errors import StreamingError
from streaming.program import command

HERE = Scope(Path("."))


def install_fbgemm(monkeypatch, *names: str, driver: bool) -> None:
    monkeypatch.setattr(requirements, "installed_fbgemm", lambda: list(names))
    monkeypatch.setattr(software, "has_driver", lambda: driver)


def test_two_builds_of_fbgemm_break_each_other(monkeypatch):
    install_fbgemm(monkeypatch, "fbgemm-gpu", "fbgemm-gpu-cpu", driver=False)
    finding = software.fbgemm(HERE)
    assert finding.severity == Severity.STOP
    assert "make setup VARIANT=cpu" in finding.remedy


def test_the_cuda_build_without_a_driver_cannot_load(monkeypatch):
    install_fbgemm(monkeypatch, "fbgemm-gpu", driver=False)
    finding = software.fbgemm(HERE)
    assert finding.severity == Severity.STOP
    assert "libnvidia-ml.so.1" in finding.seen
    assert "VARIANT=cpu" in finding.remedy


def test_the_cpu_build_beside_a_driver_leaves_the_gpu_idle(monkeypatch):
    install_fbgemm(monkeypatch, "fbgemm-gpu-cpu", driver=True)
    finding = software.fbgemm(HERE)
    assert finding.severity == Severity.WARN
    assert "VARIANT=cuda" in finding.remedy


def test_no_fbgemm_at_all_fails(monkeypatch):
    install_fbgemm(monkeypatch, driver=False)
    assert software.fbgemm(HERE).severity == Severity.STOP


@pytest.mark.parametrize(
    ("have", "severity", "told"),
    [("9.9.9", Severity.WARN, "9.9.9 (pinned 25.0.1)"), (None, Severity.STOP, "absent (pinned 25.0.1)")],
)
def test_a_version_beside_the_list_is_named_with_both_numbers(monkeypatch, have, severity, told):
    monkeypatch.setattr(requirements, "read", lambda variant: {"pyarrow": "25.0.1"})
    monkeypatch.setattr(requirements, "differences", lambda pins: {"pyarrow": ("25.0.1", have)})
    finding = software.packages(HERE)
    assert (finding.severity, told in finding.seen) == (severity, True)


def test_the_two_lists_share_their_versions_and_differ_in_what_needs_a_gpu():
    cpu, cuda = requirements.read("cpu"), requirements.read("cuda")
    assert {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]} == set()
    assert cpu.keys() - cuda.keys() == {"fbgemm-gpu-cpu"}
    assert cuda.keys() - cpu.keys() == {
        "fbgemm-gpu", "triton", "nvidia-cusolver", "nvidia-nvtx", "cuda-toolkit", "cuda-bindings", "cuda-pathfinder",
    }  # fmt: skip


def test_python_outside_the_lists_fails_with_the_command_to_mend_it(monkeypatch):
    monkeypatch.setattr(software.sys, "version_info", (3, 10, 4))
    finding = software.python(HERE)
    assert finding.severity == Severity.STOP
    assert "PYTHON=python3.11" in finding.remedy


def test_a_missing_checksum_package_fails(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "crc32c" else find_spec(name))
    finding = software.checksums(HERE)
    assert finding.severity == Severity.STOP
    assert "crc32c" in finding.seen


def test_a_codec_that_does_not_work_fails_with_its_package(monkeypatch):
    monkeypatch.setattr("kafka.codec.zstd", None)
    finding = software.compression(HERE)
    assert finding.severity == Severity.STOP
    assert "zstd cannot be read: the package zstandard" in finding.seen


def probe_says(monkeypatch, returncode: int, stdout: str = "", stderr: str = "") -> None:
    software.embedding_probe.cache_clear()
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(software.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(software, "embedding_probe", software.embedding_probe.__wrapped__)


def test_a_stack_that_dies_of_a_signal_is_told_by_its_name(monkeypatch):
    probe_says(monkeypatch, -11)
    finding = software.embeddings(HERE)
    assert finding.severity == Severity.STOP
    assert "SIGSEGV" in finding.seen


def test_a_stack_that_does_not_load_gives_its_last_line(monkeypatch):
    probe_says(monkeypatch, 1, stderr="Traceback\nOSError: fbgemm_gpu_py.so: undefined symbol: _ZN3c10\n")
    assert "undefined symbol" in software.embeddings(HERE).seen
    assert software.threads(HERE).severity == Severity.WARN


SEEN = {"torch": "2.13.0", "torchrec": "1.8.0", "cuda": False, "moved": True, "threads": 2, "one_ms": 3.0}


def test_threads_on_shared_cores_are_seen(monkeypatch):
    probe_says(monkeypatch, 0, json.dumps({**SEEN, "as_set_ms": 1400.0}))
    finding = software.threads(HERE)
    assert finding.severity == Severity.WARN
    assert "OMP_NUM_THREADS=1" in finding.remedy
    assert software.embeddings(HERE).severity == Severity.OK


def test_a_step_that_moves_nothing_fails(monkeypatch):
    probe_says(monkeypatch, 0, json.dumps({**SEEN, "as_set_ms": 3.0, "moved": False}))
    assert software.embeddings(HERE).severity == Severity.STOP


@pytest.mark.parametrize(("free_gb", "severity"), [(1, Severity.STOP), (5, Severity.WARN), (50, Severity.OK)])
def test_the_disk_of_a_run_directory_yet_to_be_made(monkeypatch, tmp_path, free_gb, severity):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(0, 0, free_gb * 1e9))
    finding = machine.disk(Scope(tmp_path / "runs" / "new"))
    assert finding.severity is severity
    assert f"{free_gb}.0 GB free at {tmp_path}" in finding.seen


def test_a_run_directory_that_cannot_be_written_fails(monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    finding = machine.disk(Scope(tmp_path))
    assert (finding.severity, "Permission denied" in finding.seen) == (Severity.STOP, True)


def test_a_containers_memory_limit_counts(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text(f"{2 * 10**9}\n")
    monkeypatch.setattr(machine, "CGROUP_LIMITS", (limit,))
    finding = machine.memory(HERE)
    assert finding.severity == Severity.STOP
    assert finding.seen.startswith("2.0 GB")


def test_no_compiler_only_warns_and_says_what_is_refused(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    finding = machine.compiler(HERE)
    assert finding.severity == Severity.WARN
    assert "`teacher.model.compile` and `exfm serve --compile` are refused" in finding.seen
    assert machine.gpu(HERE).severity == Severity.OK


def test_a_low_limit_of_open_files_names_the_command(monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 20_000))
    finding = machine.open_files(HERE)
    assert (finding.severity, finding.remedy) == (Severity.STOP, "ulimit -n 20000")


def test_loopback_that_is_down_fails(monkeypatch):
    def refuse(*_, **__):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(machine.socket, "create_server", refuse)
    assert machine.loopback(HERE).severity == Severity.STOP


def test_small_shared_memory_warns_with_dockers_option(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(0, 0, 64e6))
    assert "--shm-size" in machine.shared_memory(HERE).remedy


def test_java_that_is_missing_names_the_way_round_it(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(broker.importlib, "import_module", absent)
    finding = broker.java(HERE)
    assert finding.severity == Severity.STOP
    assert "bootstrap_servers" in finding.remedy


def test_jars_damaged_since_they_were_fetched_are_told(monkeypatch, tmp_path):
    (tmp_path / "kafka-clients-4.3.1.jar").write_bytes(b"PK half a file")
    monkeypatch.setattr("streaming.broker.jars.fetch_jars", lambda: tmp_path)
    finding = broker.jars(HERE)
    assert (finding.severity, "damaged" in finding.seen) == (Severity.STOP, True)
    assert finding.remedy == f"rm -r {tmp_path}; {command('exfm', 'broker', 'fetch')}"


def test_jars_that_cannot_be_fetched_name_the_way_round_them(monkeypatch):
    def unreachable():
        raise StreamingError("the embedded broker's jars cannot be fetched (no network)")

    monkeypatch.setattr("streaming.broker.jars.fetch_jars", unreachable)
    finding = broker.jars(HERE)
    assert (finding.severity, "bootstrap_servers" in finding.remedy) == (Severity.STOP, True)


def test_a_broker_that_does_not_start_fails_only_when_asked_to_try(monkeypatch):
    class Dead:
        def __init__(self, directory):
            self.directory = directory

        def start(self):
            raise StreamingError("the broker ended while starting")

        def stop(self):
            return False

    monkeypatch.setattr("streaming.broker.broker.LocalBroker", Dead)
    assert broker.start(HERE).severity == Severity.OK
    assert broker.start(Scope(Path("."), deep=True)) == Finding(
        "doctor.broker-dead",
        Severity.STOP,
        "broker",
        "the broker ended while starting",
        f"see the findings `java`, `jars`, `memory`, `loopback`; {broker.OWN_KAFKA}",
    )


@pytest.mark.broker
def test_deep_starts_a_real_broker_and_leaves_none_behind(tmp_path):
    finding = broker.start(Scope(tmp_path, deep=True))
    assert finding.severity == Severity.OK
    assert "answered at 127.0.0.1:" in finding.seen
    port = int(finding.seen.partition("127.0.0.1:")[2].split()[0])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_one_failure_makes_the_exit_code_1_and_hides_no_other_finding(monkeypatch, capsys):
    checks = {
        "broken": lambda scope: 1 / 0,
        "bad": lambda scope: Finding("doctor.bad", Severity.STOP, "bad", "no", "mend it"),
        "clock": machine.clock,
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    with pytest.raises(SystemExit) as left:
        cli.main(["doctor", "--json"])
    assert left.value.code == 1
    findings = json.loads(capsys.readouterr().out)
    assert [(f["name"], f["status"]) for f in findings] == [("broken", "fail"), ("bad", "fail"), ("clock", "ok")]
    assert all(set(f) == {"id", "name", "status", "message", "remedy", "seconds"} for f in findings)


@pytest.mark.check
def test_this_machine_passes_but_for_what_a_test_machine_may_lack(monkeypatch, tmp_path):
    monkeypatch.undo()
    software.embedding_probe.cache_clear()
    findings = {finding.where: finding for finding, _ in doctor.examine(run_dir=tmp_path)}
    assert list(findings) == list(doctor.CHECKS)
    needed = {
        "python",
        "packages",
        "fbgemm",
        "embeddings",
        "checksums",
        "compression",
        "ray",
        "mlflow",
        "loopback",
        "java",
    }
    assert {name: findings[name].seen for name in needed if findings[name].severity is Severity.STOP} == {}


def test_a_development_tool_that_is_absent_is_no_fault(monkeypatch):
    monkeypatch.setattr(requirements, "read", lambda variant: {"mypy": "2.4.1", "pyarrow": "25.0.1"})
    monkeypatch.setattr(requirements, "differences", lambda pins: {"mypy": ("2.4.1", None)})
    assert software.packages(HERE).severity == Severity.OK
