"""Asks a fork server for a process that runs a script; run by its path, in place of Python:

    python -IS forked.py SOCKET PYTHON [-u] SCRIPT [ARGUMENT…]

Returns once the process is there. Where no server answers, this process becomes PYTHON, which runs the script.
"""

import json
import os
import socket
import sys


def ask(path: str, script: list[str]) -> bool:
    """Whether there is a process now that runs `script` with this one's descriptors 0 to 2, environment and folder."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [b"3"], [0, 1, 2])
            server.sendall(json.dumps([script, dict(os.environ), os.getcwd()]).encode())
            server.shutdown(socket.SHUT_WR)
            return len(server.recv(4)) == 4  # its number
        except OSError:
            return False


if __name__ == "__main__":
    path, python, *script = sys.argv[1:]
    if not ask(path, [word for word in script if word != "-u"]):
        print(f"the fork server does not answer: {python} imports everything by itself", file=sys.stderr, flush=True)
        os.execv(python, [python, *script])
