"""Workers: plain classes with `open / step / checkpoint / close`, each run by one actor or by a loop.

A worker that trains is an engine (exfm/models/engine.py), a feed (pipelines/live/feeds) and a checkpointer, joined
here.

    worker, report, stopwatch   the base class; what a worker reports; where its time goes
    block_spans                 steps of a block's life, for OpenTelemetry; its trace id, for logs too
    checkpointer                lock, resuming, checkpoints written in the background, the lake's reader registration
    lines                       messages between rank 0 and another, which may be waited for
    ranks                       collectives of the processes of one worker
    rounds                      … that rank 0 leads, by orders to the others
    ingest                      plays a generated or recorded stream into the topics
    augmentation/ teacher/ student/   the other workers, each in its own folder
"""
