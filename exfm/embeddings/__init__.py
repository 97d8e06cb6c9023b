"""Embedding tables and their optimizer.

table          plain tables, and `Tables`: all tables of a model, wherever they are held
composed       embeddings that are composed of rows of plain tables
kinds          what an id reads: kinds of tables, a file each
weights        initial weights, and stored ones that are made longer, by window
fused          tables in training, in one process: AdaGrad, by loops
served         as they are served: looked up only
quantised      the same, of int8 and int4
adagrad        the optimizer of tables, and keeping AdaGrad's accumulators from growing forever
"""
