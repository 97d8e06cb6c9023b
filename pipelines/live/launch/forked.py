"""Client of a fork server: requests a process that runs a script; run by its path, in place of Python:

    python -IS forked.py SOCKET PYTHON [-u] SCRIPT [ARGUMENT…]

Returns once the process is there. Where no server answers, this process becomes PYTHON, which runs the script.
"""

import json
import os
import socket
import sys

PID_BYTES = 4


def ask(path: str, script: list[str]) -> str | None:
    """Request a process that runs `script` with this one's descriptors 0 to 2, environment and folder; returns the
    reason if there is none."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [b"3"], [0, 1, 2])
            server.sendall(json.dumps([script, dict(os.environ), os.getcwd()]).encode())
            server.shutdown(socket.SHUT_WR)
            answer = server.recv(200)
        except OSError:
            answer = b""
    return None if len(answer) == PID_BYTES else answer.decode() or "does not answer"


if __name__ == "__main__":
    path, python, *script = sys.argv[1:]
    if (why := ask(path, [word for word in script if word != "-u"])) is not None:
        print(f"the fork server {why}; {python} imports everything by itself", file=sys.stderr, flush=True)
        os.execv(python, [python, *script])
