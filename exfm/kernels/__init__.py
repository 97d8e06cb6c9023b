"""Fast forms of what plain torch or NumPy would compute, each tied to its torch twin by a test of values and gradients
(tests/unit/exfm/kernels).

pairs   the products of a DLRM's pairs, taken from square matrices and put back
tables  rows of embedding tables: summed by bag, and moved by AdaGrad
"""
