"""Fast forms of what plain torch or NumPy would compute, each tied to its twin by a test of values and gradients
(tests/unit/exfm/kernels), and the compilers that they go through.

loops         functions on arrays, compiled by numba
machine_code  functions of tensors, compiled by AOTInductor
pairs         the products of a DLRM's pairs, taken from square matrices and put back
wukong        Wukong as a compiler is given it
tables        rows of embedding tables: summed by bag, and moved by AdaGrad
bags          ids of bags: those without rows left out, distinct ones found, gradients measured by id
chunks        chunks of vectors, pruned and regrown
slots         slots of ids that come and go, given to new ids
columns       memory addresses of a batch's columns
hashing       hashed features of a batch
siphash       hashes of texts
"""
