"""Measurements that are run by hand, each a command; `--help` says what is measured and how. They need no data.

What a step, a row, a request costs:

    python -m tests.benchmarks.bench_kinds STREAM    kinds of tables at equal bytes, and what a step of each costs
    python -m tests.benchmarks.bench_freshness       from learned to a logit, at half the teacher's highest rate
    python -m tests.benchmarks.bench_generator       impressions a second of the synthetic stream
    python -m tests.benchmarks.bench_settlement      rows merged and settled a second, bytes of a pending impression
    python -m tests.benchmarks.bench_partitions RUN…  blocks of up to 64 augmentation workers, from recorded costs
    python -m tests.benchmarks.bench_pending         what a tenth of a day at 1,000 impressions a second takes
    python -m tests.benchmarks.bench_lake            commits, polls and reads of the lake
    python -m tests.benchmarks.bench_metrics RUN     what scrapes and spans cost of the CPU seconds of a run
    python -m tests.benchmarks.bench_capacity        seconds of a step by size of model; a run against `exfm capacity`
    python -m tests.benchmarks.bench_verticals       a commit of 4 to 4,000 verticals
    python -m tests.benchmarks.bench_slow_stream     years of event time: files, and the share of reading, by layout
    python -m tests.benchmarks.bench_checkpoint      training while a checkpoint is written
    python -m tests.benchmarks.bench_restore         saving and restoring windows of tables that others cut
    python -m tests.benchmarks.bench_host            students that share a process; a backfill and the bare engine
    python -m tests.benchmarks.bench_init            a look at a long file: seconds and memory
    python -m tests.benchmarks.bench_deltas          bytes of deltas over a Zipf stream: policies, bits, widths
    python -m tests.benchmarks.bench_increments      live increments: what training and requests pay for them
    python -m tests.benchmarks.bench_spawn           other workers while a spawned student learns the lake
    python -m tests.benchmarks.bench_reader_ahead    reading ahead of training, on and off
    python -m tests.benchmarks.bench_scoring_ranks   scoring by ranks, compared with a replica
    python -m tests.benchmarks.bench_serving         answers a second and their latency, in process and over HTTP
    python -m tests.benchmarks.compiled_served       a served student as compiled code, next to eager
    python -m tests.benchmarks.bench_sharding        every way to cut tables over ranks
    python -m tests.benchmarks.bench_student_ranks   a student's step on several ranks, against one process
    python -m tests.benchmarks.student_cost          distillation, in serving and in training
    python -m tests.benchmarks.phases NAME=RUN …     where the time of a run's workers goes, and how much is compute
    python -m tests.benchmarks.large_teacher         tables that no single rank may hold (12 GB)
    python -m tests.benchmarks.walks                 files that a reader opens to follow the code

What becomes of the model:

    python -m tests.benchmarks.accumulator_decay     AdaGrad that forgets, on a stream that drifts
    python -m tests.benchmarks.ctr_lag               how long a click waits to be learned, beside slow conversions
    python -m tests.benchmarks.demo_seeds SEED …     the demo under other seeds
    python -m tests.benchmarks.first_rows            every model on its first rows, against the base rate and FTRL
    python -m tests.benchmarks.bench_managed         ids that come and go, in fewer rows than there are ids
    python -m tests.benchmarks.interval_coverage     how often an interval of few positives holds the truth
    python -m tests.benchmarks.peeking               looking again and again, with an e-process and with plain intervals
    python -m tests.benchmarks.poisoned_hour         an hour of wrong labels, rewound, against a run without it
    python -m tests.benchmarks.quantised_restores RUN  a teacher that goes on from tables in fewer bits
    python -m tests.benchmarks.rank_change           the loss of a teacher that is resumed by more or fewer ranks
    python -m tests.benchmarks.reduced_comms         embeddings that travel as halves
    python -m tests.benchmarks.replay                a replay of four arms over a lake, and the bare engine
    python -m tests.benchmarks.replay_statistics     what intervals of a replay hold, A/A and of a planted gain
    python -m tests.benchmarks.spawn_variants        a student that is spawned at mid-stream, by the way it begins
    python -m tests.benchmarks.teacher_precision    what products in bf16 cost a teacher in NE
    python -m tests.benchmarks.teacher_bias          a biased teacher, and what its students serve
"""
