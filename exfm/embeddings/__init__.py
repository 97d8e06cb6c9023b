"""Embedding tables and their optimizer.

tables         one TorchRec table per sparse feature and sequence: initial weights, look-up
fused          the same tables in training: AdaGrad, which is at work where a gradient arrives
quantised      tables of int8 and int4, to serve
accumulators   keeping AdaGrad's accumulators from growing forever
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
