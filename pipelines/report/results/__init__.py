"""Results of a finished run.

summary   summary.json: figures of every student, counts, workers
figures   exact metrics over every prediction of one student and task
verdict   what a student's gain over its twin amounts to, in words
champion  which of a student and its twin is served
advice    what to try after a run
age       NE by tenth of the stream, and where a model is worse than the label rate or the regression
columns_read  what was read of every column
losses    what was lost, why, and what to change
remedies  what to change, by the reason of dead letters
lost_feedback  which feedback was lost, and when
stored    the summary of a finished run, read back
cells     the figures of a summary as cells
picture   ne.png: normalised entropy over the stream
"""
