"""Scaling runs: teachers of growing size on the same rows, and the law that their losses follow.

family   the members, by interaction and size, and one pass of each
run      all passes of a family
report   figures of every member, and the fitted laws, as one JSON value
picture  NE against FLOPs
"""
