"""Interactions: the networks between embeddings and heads, each from its paper.

interaction    what an interaction is: options that build a network
registry       the interactions by name, and a student's trunk
wukong, dlrm, dcn, mlp   one interaction each
hstu           a stack of attention layers over a sequence of events
"""
