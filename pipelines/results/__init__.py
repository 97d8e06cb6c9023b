"""Results of a finished run.

summary  summary.json: exact metrics over every prediction, and counts
verdict  what a student's gain over its twin amounts to, in words
counts   what became of every row that was read
losses   what was lost, why, and what to change
picture  ne.png: normalised entropy over the stream
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
