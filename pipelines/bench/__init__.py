"""How fast this machine does the work of a run, next to what its silicon allows and to bare torch.

figures    figures, and the turns in which they are measured
benchmark  work next to its limit and its reference
limits     what the silicon allows: products of matrices, copies of memory, loopback, disk
shape      the rows and models that are measured
sketches   the same work in bare torch
students   training steps of a student, by arm and size of batch
teachers   steps and forward passes of a teacher
tables     embedding tables by themselves
rows       from Arrow and from the lake to tensors
serving    the answer to a request
processes  what a worker imports, and what it holds of memory
catalogue  all of them, by name
text       figures as a table
"""
