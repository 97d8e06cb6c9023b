"""The registry of a run: the versions of its students, and who is champion when and why.

standing   candidate, champion and previous, and how a decision changes them
ledger     the file that keeps every decision
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
