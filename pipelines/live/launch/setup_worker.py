"""What Ray runs first of each worker, in place of its own file of this name, which imports Ray for it (.45 core s):

    python setup_worker.py SCRIPT [ARGUMENT…] --serialized-runtime-env-context=JSON --language=PYTHON

This process gets the environment, and becomes the executable, that the context names. It has to have this name: where a
worker needs no context, Ray takes the name out of the command.
"""

import argparse
import json
import os
import shlex
import sys


def replaced(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command that takes this one's place, and what its environment has as well.

    >>> context = '--serialized-runtime-env-context={"py_executable": "python -IS ask.py", "env_vars": {"A": "1"}}'
    >>> replaced(["worker.py", "--node=1", context, "--language=PYTHON"])
    (['python', '-IS', 'ask.py', 'worker.py', '--node=1'], {'A': '1'})
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    own, kept = parser.parse_known_args(words)
    context = json.loads(own.serialized_runtime_env_context)
    executable = shlex.split(context.get("py_executable") or shlex.quote(sys.executable))
    return [*executable, *kept], context.get("env_vars") or {}


if __name__ == "__main__":
    command, variables = replaced(sys.argv[1:])
    os.environ.update(variables)
    os.execv(command[0], command)
