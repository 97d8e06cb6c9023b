"""The speed of this machine at the work of a run, next to what its silicon allows and to bare torch: `exfm bench`.

measuring  figures, and the turns in which works are measured
limits     what the silicon allows: products of matrices, copies of memory, loopback, disk
shape      the rows that are measured
sketches   the same work in bare torch
students   training steps of a student: two sizes of DLRM, and the default arm by size of batch
teachers   steps and forward passes of a Wukong
tables     embedding tables by themselves
rows       from Arrow and from the lake to tensors
serving    the answer to a request
processes  what a worker imports, and what it holds of memory
catalogue  all of them, by name, and how long they take
text       figures as a table
"""
