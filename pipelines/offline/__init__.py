"""Models trained on logged rows, without a broker: what sweeps and scaling runs share.

rows      one stream of settled rows that many models learn from
pool      jobs in several processes
parts     results that are done, as files that the next start finds again
sweep/    many students over logged teacher logits: which arm pays
scaling/  teachers of growing size: what more FLOPs buy
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
