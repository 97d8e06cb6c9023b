"""Embedding tables and their optimizer.

weights        sizes of tables, initial weights, weights by table
tables         one TorchRec table per sparse feature and sequence
fused          the same tables in training: AdaGrad, which is at work where a gradient arrives
served         the same tables, looked up only
quantised      as they are served, of int8 and int4
adagrad        the optimizer of tables, and keeping AdaGrad's accumulators from growing forever
"""
