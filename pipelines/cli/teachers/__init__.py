"""Sub-commands about teachers: each file holds those of one noun and a function `register(app)` that adds them.

teacher     plan, scale, pretrain, teacher …
logit_sets  rescore
rewind      rewind
"""
