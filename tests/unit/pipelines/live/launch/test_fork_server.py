"""Processes that are forked from one which has imported everything."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from pipelines.live.launch.fork_server import ForkServer
from tests.support.waiting import PATIENCE_S, eventually

SAID = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "set": os.environ.get("SET"),
    "gone": "GONE" in os.environ, "at_birth": os.environ["AT_BIRTH"], "had": "colorsys" in sys.modules,
    "typed": sys.stdin.read(), "parent": os.getppid(), "pid": os.getpid(), "leads": os.getsid(0) == os.getpid(),
}), flush=True)
"""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("GONE", "in the server alone")
    monkeypatch.setenv("AT_BIRTH", "1")
    servers = [ForkServer(["colorsys"], {"OF_THE_SERVER": "1"})]
    yield servers[0]
    servers[0].close()


def ask(server: ForkServer, script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name != "GONE"}
    return subprocess.run(
        [*shlex.split(server.command), "-u", str(script), *arguments],
        cwd=script.parent,
        env=kept | environment,
        input="typed",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_a_fork_has_what_was_imported_and_is_the_process_that_was_asked_for(server, tmp_path):
    script = tmp_path / "said.py"
    script.write_text(SAID)
    done = ask(server, script, "one", "two words", SET="now")
    said = json.loads(done.stdout)
    assert said | {"pid": 0} == {
        "argv": ["one", "two words"], "name": "__main__", "folder": str(tmp_path), "set": "now", "gone": False,
        "at_birth": "1", "had": True, "typed": "typed", "parent": server.pid, "pid": 0, "leads": True,
    }  # fmt: skip
    assert done.returncode == 0


def test_forks_are_of_their_own(server, tmp_path):
    script = tmp_path / "said.py"
    script.write_text(SAID)
    first, second = (json.loads(ask(server, script).stdout)["pid"] for _ in range(2))
    assert len({first, second, server.pid}) == 3


def test_some_modules_are_imported_in_the_environment_of_the_first_that_asks(tmp_path, monkeypatch):
    (tmp_path / "reads_it.py").write_text("import os; SAW = os.environ['JOB'], 'GONE' in os.environ")
    script = tmp_path / "said.py"
    script.write_text("import reads_it; print(*reads_it.SAW)")
    monkeypatch.setenv("GONE", "in the server alone")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with closing(ForkServer([], {}, ["reads_it"])) as server:
        assert [ask(server, script, JOB=job).stdout for job in ("one", "two")] == ["one False\n"] * 2


def test_a_server_that_still_imports_is_ended_at_once(tmp_path, monkeypatch):
    (tmp_path / "takes_long.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    server = ForkServer(["takes_long"], {})
    server.close()
    server.close()
    assert not psutil.pid_exists(server.pid)


def test_who_asks_a_server_that_is_gone_becomes_the_process_itself(server, tmp_path):
    script = tmp_path / "said.py"
    script.write_text(SAID)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: Path(f"/proc/{server.pid}/stat").read_text().split()[2] == "Z", look_s=0.01)
    done = ask(server, script, "one")
    said = json.loads(done.stdout)
    assert (said["argv"], said["typed"], said["had"]) == (["one"], "typed", False)
    assert "the fork server does not answer" in done.stderr


def test_a_server_that_may_not_fork_lives_on_and_who_asks_becomes_the_process_itself(tmp_path, monkeypatch):
    """As where a limit on processes was met."""
    (tmp_path / "limited.py").write_text(
        "import errno, os\ndef fork(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\nos.fork = fork"
    )
    script = tmp_path / "said.py"
    script.write_text(SAID)
    monkeypatch.setenv("AT_BIRTH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with closing(ForkServer(["limited"], {})) as server:
        for done in (ask(server, script, "one"), ask(server, script, "one")):
            assert json.loads(done.stdout)["argv"] == ["one"]
            assert "the fork server cannot fork: [Errno 11] Resource temporarily unavailable; " in done.stderr
        assert psutil.Process(server.pid).is_running()


def test_a_fork_that_stands_still_is_ended_with_the_server_where_that_is_asked_for(server, tmp_path):
    script = tmp_path / "still.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")
    with subprocess.Popen([*shlex.split(server.command), str(script)]):
        pass
    eventually(lambda: [fork.status() for fork in psutil.Process(server.pid).children()] == ["stopped"], look_s=0.02)
    (fork,) = psutil.Process(server.pid).children()
    server.close(0.05)
    eventually(lambda: not fork.is_running() or fork.status() == psutil.STATUS_ZOMBIE, look_s=0.02)


@pytest.mark.parametrize("said", [None, b"", b'[["/nowhere.py"], {'])
def test_who_is_ended_while_it_asks_keeps_no_one_else_from_being_answered(server, tmp_path, said):
    script = tmp_path / "said.py"
    script.write_text(SAID)
    path = shlex.split(server.command)[3]
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        if said is not None:
            socket.send_fds(asking, [b"3"], [0, 1, 2])
            asking.sendall(said)
    assert json.loads(ask(server, script).stdout)["parent"] == server.pid


OWNER = """
import sys, time
from pipelines.live.launch.fork_server import ForkServer
server = ForkServer(["colorsys"], {}, of_owner=bool(sys.argv[1:]))
print(server.pid, server.command.split()[3], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("of_owner", [[], ["of_owner"]])
def test_a_server_ends_with_its_owner_however_that_ended_and_leaves_nothing(of_owner):
    with subprocess.Popen([sys.executable, "-c", OWNER, *of_owner], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, path = owner.stdout.readline().split()
        assert Path(path).is_socket()
        owner.kill()
    eventually(lambda: not (Path(path).parent.exists() or Path(f"/proc/{pid}").exists()), look_s=0.02)


ASKING = """
import atexit, colorsys, os, shlex, subprocess, sys
from pipelines.live.launch.fork_server import ForkServer
atexit.register(lambda: print("at exit", os.getpid(), flush=True))
print("not flushed", end=" ")
server = ForkServer(["pipelines.live.launch.preloaded"], {}, of_owner=True)
try:
    print("owner", os.getpid(), "server", server.pid, flush=True)
    for script in sys.argv[1:]:
        said = subprocess.run([*shlex.split(server.command), script], capture_output=True, text=True, timeout=60).stdout
        print(said, end="")
finally:
    print("the owner goes on", os.getpid(), flush=True)
    server.close()
    server.close()
    print("gone", not os.path.exists(f"/proc/{server.pid}"))
"""


def test_a_fork_of_its_owner_has_what_both_imported_and_goes_on_with_nothing_that_the_owner_was_at(tmp_path):
    fine, failing = tmp_path / "fine.py", tmp_path / "failing.py"
    fine.write_text(
        "import sys; print('had', {'colorsys', 'pipelines.live.launch.preloaded'} <= {*sys.modules}, flush=True)"
    )
    failing.write_text(
        "import sys, traceback\nsys.stderr = sys.stdout\nprint('fails', flush=True)\nraise ValueError('of its own')"
    )
    done = subprocess.run(
        [sys.executable, "-c", ASKING, str(fine), str(failing)], capture_output=True, text=True, timeout=120, check=True
    )
    said = done.stdout.splitlines()
    _, _, _, owner, _, server = said[0].split()
    assert owner != server
    assert said[0].startswith("not flushed owner")
    assert said.count("had True") == said.count("fails") == said.count("ValueError: of its own") == 1
    forks = {line.split()[-1] for line in said if line.startswith("at exit")} - {owner}
    assert len(forks) == 2  # each ended as a process does
    assert server not in forks  # it was ended
    assert [line for line in said if line.startswith("the owner")] == [f"the owner goes on {owner}"]
    assert said[-2:] == ["gone True", f"at exit {owner}"]
