"""Parts of a replay's spec: arms, conditions, and which rows.

arms        what an arm changes, in a spec or in a line of the command
conditions  the logits and labels that students get, and when they start
span        from which row to which
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
