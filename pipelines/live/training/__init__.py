"""Training infrastructure shared by all training workers and by offline computations.

account, learned, quarantine   rows that models were given, learned, left out
unseen_labels                  which labels a teacher cannot have learned when it scores a row
ahead, writer                  reading before, and writing behind, the training
forgetting                     ids that a worker is to forget
freshness                      how long until a logit knows what was learned, and how far behind a row its teacher was
machine                        the versions and the machine that bits depend on
set_writer                     a logit set while it is written
predictions, live_metrics      every prediction on disk; figures while the stream runs
judged_windows                 the last rows of each task: a model beside its twin
"""
