"""Interactions: the networks between embeddings and heads, each from its paper.

interaction    what an interaction is: options that build a network
registry       the interactions by name, and a student's trunk
wukong, dlrm, dcn, mlp   one interaction each
wukong_code    wukong as a compiler is given it
units          from looked-up embeddings to embeddings of one width

pooling        attention over the places of a sequence
dense          linear layers and MLPs whose weights follow from a generator
"""
