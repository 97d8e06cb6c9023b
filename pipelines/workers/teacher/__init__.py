"""The teacher's worker: learns every block of the examples topic and publishes snapshots.

worker      the worker: step, checkpoint, report
offer       how ranks agree on the next block
block       the block they agreed on, and how far it is learned
tally       what all ranks made of a block
publisher   snapshots: written, pruned, written again where one was damaged
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
