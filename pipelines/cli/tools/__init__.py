"""Tools for runs and data, used by single commands, and options that several commands share.

options         options that several sub-commands share
feeding         a recorded file into the input topics
recording       the synthetic stream as Parquet files
dead_letters    of a run: counted, shown, put back onto their topics
broker_move     of a run to topics on another cluster, of a mirror, or created anew
event_time      of a run that a record from the future has moved, set back by hand
lake            a run's lake: contents, readers, housekeeping by hand
asof            as-of features for the rows that a run's lake has already
log_tail        the end of a worker's log
teachers        those that a run has had, and what was revoked
rewind          what would be learned again
stopping        Ctrl-C of a command that goes on where it was stopped
versions        a student's champion, chosen by hand
working_copies  addresses of runs on a command line
forgetting      an id of a run's models, forgotten
scaling         another number of workers of a run
stored_config   the config that a run stored
"""
