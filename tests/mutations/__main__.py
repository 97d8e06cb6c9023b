"""`python -m tests.mutations [NAME …]`: makes the edits, one at a time, and sees whether the tests notice."""

import sys

from tests.mutations.attempts import run
from tests.mutations.edits import MUTATIONS

sys.exit(run(MUTATIONS, sys.argv[1:]))
