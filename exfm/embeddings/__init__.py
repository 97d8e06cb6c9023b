"""Embedding tables and their optimizer.

table          the two interfaces: `Table`, a kind of table; `Tables`, all tables of a model wherever they are held
weights        initial weights, and stored ones that are made longer, by window
fused          tables in training, in one process: AdaGrad, by loops
served         as they are served: looked up only
quantised      the same, of int8 and int4
adagrad        the optimizer of tables, and keeping AdaGrad's accumulators from growing forever
"""
