"""Where workers run: Ray actors, or this process.

ray          the launchers and their handles; Ray's actors are known here alone
fork_server  processes of workers are forked from one that has imported what they need
forked       what asks it, in place of Python
host         workers that share a process
slots        which of them share which
ranks        a worker that is several processes, polled as one
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
