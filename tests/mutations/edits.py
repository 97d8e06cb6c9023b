"""Faults that the tests must see: each is one edit that takes away the fix for one invariant.

    python -m tests.mutations            all of them, each against the tests that must fail, as a table
    python -m tests.mutations NAME …     these only

Each is made in a copy of the tree; nothing here is touched. `test_mutations.py` holds that every edit still finds its
place, so that the list cannot rot.
"""

from __future__ import annotations

from tests.mutations.attempts import Mutation

# The invariants of DESIGN.md.
HONEST = "score before learn"
ONCE = "exactly once"
LOG = "the lake is the log"
SLOW = "slow labels hold nobody up"
RAW = "the lake holds raw values"
KEPT = "nothing lost"
REPLAY = "replay equals live"
PACE = "logits from a trained teacher"
SERVED = "serving purity"


SETTLEMENT = "tests/unit/streaming/settlement/test_settlement.py"
PROPERTIES = "tests/unit/streaming/settlement/test_settlement_properties.py"
MERGE = "tests/unit/streaming/intake/test_merge.py"
REPARTITIONING = "tests/unit/streaming/settlement/test_repartitioning.py"
MOVING = "tests/unit/streaming/intake/test_moving.py"
LAKE = "tests/contracts/test_lake_writer.py"
OUTBOX = "tests/contracts/test_outbox.py"
EXAMPLES = "tests/contracts/test_examples.py"
INTAKE = "tests/contracts/test_intake.py"
SIMULATION = "tests/simulation/test_simulation.py"
WINDOWS = "tests/unit/streaming/settlement/test_windows.py"
TOPIC_RETENTION = "tests/contracts/test_topic_retention.py"
PIPELINE = "tests/contracts/test_pipeline.py"
LIVE = "tests/contracts/test_pipeline_live.py"
INPUTS = "tests/contracts/test_pipeline_inputs.py"
CRASHES = "tests/recovery/test_crashes.py"
SCORED = "tests/contracts/test_score_before_learn.py"
TEACHER = "tests/unit/exfm/models/test_teacher.py"
BATCHES = "tests/unit/pipelines/live/feeds/test_teacher.py"
REGISTERED = "tests/unit/pipelines/track/test_registration.py"
STUDENT = "tests/unit/exfm/models/test_student.py"
CHECKPOINT = "tests/unit/exfm/snapshots/test_checkpoint.py"
PIECES = "tests/unit/exfm/snapshots/test_checkpoint_pieces.py"
AUGMENTATION = "pipelines/live/workers/augmentation/worker.py"
COMMIT = "pipelines/live/workers/augmentation/commit.py"

MUTATIONS = (
    Mutation(
        "newest snapshot in lockstep",
        f"{HONEST}, {REPLAY} (17)",
        AUGMENTATION,
        "return NOTHING_LEARNED if version is None else Score(version)",
        "return Score(self._snapshots.load_newest() or 1)",
        f"{PIPELINE}::test_no_row_is_scored_by_a_teacher_that_has_learned_it",
    ),
    Mutation(
        "lag of none",
        f"{HONEST} (17)",
        "pipelines/live/rules/scoring_snapshot.py",
        "version = block - lag + 1 - behind",
        "version = block - lag + 2 - behind",
        "tests/unit/pipelines/live/rules/test_scoring_snapshot.py",
    ),
    Mutation(
        "a logit for a label learned with another window",
        HONEST,
        "pipelines/live/training/unseen_labels.py",
        "settled_N[:, None] <= own_T[None, :]",
        "settled_N[:, None] >= 0 * own_T[None, :]",
        SCORED,
    ),
    Mutation(
        "another version recorded than the one that scored",
        f"{HONEST} (19)",
        AUGMENTATION,
        '"teacher_version": self._snapshots.version if has_teacher else None',
        '"teacher_version": max(1, self._snapshots.version - 1) if has_teacher else None',
        SCORED,
    ),
    Mutation(
        "history scored by whatever snapshot there is",
        f"{PACE} (18)",
        "pipelines/live/rules/scoring_snapshot.py",
        "if catching_up and rows_since_newest > max_rows_ahead:",
        "if False:",
        "tests/unit/pipelines/live/rules/test_scoring_snapshot.py",
    ),
    Mutation(
        "published before committed",
        f"{LOG} (3)",
        COMMIT,
        """        self._save_state(record)  # 1
        self._commit_rows(block, number, counts)  # 2
        self._deliver(record)  # 3
        self._publish(block)  # 4
""",
        """        self._publish(block)
        self._save_state(record)
        self._commit_rows(block, number, counts)
        self._deliver(record)
""",
        f"{CRASHES} -k commits",
    ),
    Mutation(
        "what a crash kept from being published is not made up",
        f"{LOG} (3)",
        COMMIT,
        "if self._publisher.published_seq < self.lake.last_lake_seq:",
        "if False:",
        f"{CRASHES} -k committed",
    ),
    Mutation(
        "a writer that another has followed goes on",
        f"{ONCE} (4)",
        "streaming/lake/writer.py",
        "if epoch != self.epoch:",
        "if False:",
        f"{LAKE}::test_the_older_of_two_writers_is_fenced",
    ),
    Mutation(
        "lake_seq not looked at again before a commit",
        f"{ONCE} (4)",
        "streaming/lake/writer.py",
        "if seq == last_seq and table.num_rows:",
        "if False:",
        f"{LAKE}::test_a_commit_reported_as_failed_after_it_was_stored_is_not_made_twice",
    ),
    Mutation(
        "positions that skip or repeat are let in",
        f"{LOG} (2)",
        "streaming/lake/writer.py",
        "if lake_seq[0] != self.last_lake_seq + 1:",
        "if False:",
        f"{LAKE} -k refused",
    ),
    Mutation(
        "dead letters told again after a restart",
        f"{ONCE}, {KEPT} (4)",
        "streaming/delivery/outbox.py",
        "if (record.number, part) > self._published:",
        "if True:",
        OUTBOX,
    ),
    Mutation(
        "side tables do not know what they hold",
        f"{ONCE} (4)",
        "streaming/lake/side_tables.py",
        "before is not None and number <= before",
        "False",
        "tests/contracts/test_side_tables.py",
    ),
    Mutation(
        "what a commit leaves behind is forgotten by a crash",
        KEPT,
        COMMIT,
        """            record = CommitRecord.load(folder_of_state(self._run_dir, state), state)
            self._outbox.deliver(record)
""",
        """            record = CommitRecord.load(folder_of_state(self._run_dir, state), state)
""",
        f"{CRASHES} -k delivers",
    ),
    Mutation(
        "a block published twice is learned twice",
        ONCE,
        "streaming/delivery/reader.py",
        """        if header.block <= self._after:
            return
""",
        "",
        EXAMPLES,
    ),
    Mutation(
        "a block is learned without the part that is missing",
        ONCE,
        "streaming/delivery/reader.py",
        "if rows != there:",
        "if False:",
        EXAMPLES,
    ),
    Mutation(
        "a rank learns what another one reads",
        f"{ONCE} (15)",
        "pipelines/live/feeds/teacher.py",
        "    order = order[np.isin(owner[order], mine)]\n",
        "",
        BATCHES,
    ),
    Mutation(
        "batches depend on how many ranks there are",
        f"{REPLAY} (15)",
        "pipelines/live/feeds/cuts.py",
        "return np.asarray(np.outer([0, *ends], counts) // ends[-1])",
        "return np.asarray(np.outer([0, *ends], counts) // counts.sum())",
        BATCHES,
    ),
    Mutation(
        "the death of a rank leaves the others alone",
        f"{ONCE} (15)",
        "pipelines/live/launch/ranks.py",
        "            self.kill()\n            raise self._first_death",
        "            raise self._first_death",
        "tests/unit/pipelines/live/launch/test_ranks.py",
    ),
    Mutation(
        "ties between topics go by arrival",
        f"{REPLAY} (6)",
        "streaming/intake/merge.py",
        "for partition in sorted(partitions)}",
        "for partition in partitions}",
        f"{MERGE} {PROPERTIES}",
    ),
    Mutation(
        "watermark over impressions only",
        f"{ONCE} (7)",
        "streaming/intake/merge.py",
        "for f in self._feeds.values() if not (f.ended or f.idle)), default=END_OF_TIME)",
        'for f in self._feeds.values() if not (f.ended or f.idle or f.kind == "feedback")), default=END_OF_TIME)',
        INTAKE,
    ),
    Mutation(
        "idle without the broker's word",
        f"{ONCE} (7)",
        "streaming/intake/intake.py",
        "if partition not in at_end:",
        "if False:",
        f"{INTAKE}::test_a_partition_is_not_idle_while_the_broker_does_not_confirm_its_end",
    ),
    Mutation(
        "a partition becomes idle by an answer of before the rows that wait for it",
        f"{ONCE} (7)",
        "streaming/intake/intake.py",
        "at_end = self._at_end(silent, max_age_s=0.0) if due else self._at_end(silent)",
        "at_end = self._at_end(silent)",
        WINDOWS,
    ),
    Mutation(
        "an idle partition is not asked again",
        f"{ONCE} (7)",
        "streaming/intake/intake.py",
        "if rows_came and self._idle:",
        "if False:",
        WINDOWS,
    ),
    Mutation(
        "an outage leaves idle partitions idle",
        f"{ONCE} (7)",
        "streaming/intake/intake.py",
        "for partition in self._merge.partitions:",
        "for partition in ():",
        WINDOWS,
    ),
    Mutation(
        "an outage inside a publication goes unseen",
        f"{ONCE} (7)",
        AUGMENTATION,
        "if self._clock() - opened_s >= UNSEEN_S:",
        "if False:",
        f"{SIMULATION}::test_an_outage_inside_a_publication_gives_what_was_held_back_its_time",
    ),
    Mutation(
        "where partitions begin is not kept",
        f"{KEPT} (11)",
        "streaming/intake/merge.py",
        "feed.next_position = position if feed.next_position is None else feed.next_position",
        "pass",
        f"{MERGE} {TOPIC_RETENTION}",
    ),
    Mutation(
        "a moved run passes over what was never read",
        f"{KEPT} (11)",
        "streaming/intake/moving.py",
        "    if foreign is None:",
        "    if True:",
        MOVING,
    ),
    Mutation(
        "a mirror that is behind is taken",
        f"{KEPT} (11)",
        "streaming/intake/moving.py",
        "if e.trail and not searches[p].complete]:",
        "if e.trail and not searches[p].found]:",
        MOVING,
    ),
    Mutation(
        "topics cut anew are read from the newest of the messages read last",
        f"{KEPT} (11)",
        "streaming/intake/moving.py",
        "max(oldest_ms, min(_earliest(each.trail) for each in recorded))",
        "max(oldest_ms, max(each.trail[-1].timestamp_ms for each in recorded) + margin_ms)",
        MOVING,
    ),
    Mutation(
        "partitions that become others number impressions from 0, which are in lists of before",
        f"{KEPT} (11)",
        "streaming/settlement/saved/repartitioning.py",
        "self.first = max(log.stop for log in self._logs)",
        "self.first = 0",
        REPARTITIONING,
    ),
    Mutation(
        "rows passed too far are counted twice where partitions become others",
        f"{ONCE}",
        "streaming/settlement/saved/repartitioning.py",
        "total.uncount(place, again, mask[rows][passes[place] :])",
        "pass",
        REPARTITIONING,
    ),
    Mutation(
        "lists of as-of features keep the numbers of before",
        f"{KEPT} (11)",
        "streaming/settlement/saved/repartitioning.py",
        "tables.renumber(global_numbers(impressions.of, impressions.number), global_numbers(*now))",
        "pass",
        REPARTITIONING,
    ),
    Mutation(
        "no state before the first row",
        f"{KEPT} (11)",
        AUGMENTATION,
        "        if stream.begins:",
        "        if False:",
        f"{TOPIC_RETENTION}::test_augmentation_remembers_where_the_topics_began_before_it_has_read_a_row",
    ),
    Mutation(
        "a clock ahead moves event time",
        f"{KEPT} (8)",
        "streaming/intake/merge.py",
        "(future := (ahead > self._skew_ms) & ~seconds).any():",
        "(future := (ahead > 2**62) & ~seconds).any():",
        MERGE,
    ),
    Mutation(
        "too old impressions are let in",
        f"{ONCE} (8)",
        "streaming/settlement/settlement.py",
        "too_old = event_time < key - self._horizon",
        "too_old = event_time < 0",
        SETTLEMENT,
    ),
    Mutation(
        "late feedback counts",
        f"{ONCE} (9)",
        "streaming/settlement/label_join.py",
        "counts = (after <= 0) & (delay >= -self._early) & (delay <= window)",
        "counts = (delay >= -self._early) & (delay <= window)",
        PROPERTIES,
    ),
    Mutation(
        "feedback from outside its window counts",
        f"{ONCE} (9)",
        "streaming/settlement/label_join.py",
        "counts = (after <= 0) & (delay >= -self._early) & (delay <= window)",
        "counts = (after <= 0) & (delay >= -self._early)",
        SETTLEMENT,
    ),
    Mutation(
        "conversions of rows that were not clicked",
        f"{ONCE} (9)",
        "streaming/settlement/emission.py",
        "emitted[here] = self._count(",
        "self._count(",
        SETTLEMENT,
    ),
    Mutation(
        "a label that is unknown is negative",
        f"{ONCE} (9)",
        "streaming/settlement/label_join.py",
        "positive | (applicable & ~_bit(bits, len(self._place) + place))",
        "applicable",
        SETTLEMENT,
    ),
    Mutation(
        "every group waits for the longest window",
        SLOW,
        "streaming/settlement/emission.py",
        "pending.key_time.search(watermark_ms - group.window_ms - self._lateness)",
        "pending.key_time.search(watermark_ms - self._groups[-1].window_ms - self._lateness)",
        f"{LIVE}::test_clicks_are_learned_when_their_window_closes_however_long_conversions_take",
    ),
    Mutation(
        "ids known are not known after a restart",
        f"{ONCE} (10)",
        "streaming/settlement/pending.py",
        "self._index.restore(self._restored_segments(state, event_time), state.first)",
        "self._index.restore((h + np.uint64(1) for h in self._restored_segments(state, event_time)), state.first)",
        f"{SETTLEMENT} {PROPERTIES}",
    ),
    Mutation(
        "unread messages that retention deleted are skipped",
        f"{KEPT} (11)",
        "streaming/kafka/reader.py",
        "    if offset < begin:",
        "    if False:",
        "tests/contracts/test_topic_reader.py -k gap",
    ),
    Mutation(
        "batches end where a read ends",
        f"{REPLAY} (14)",
        "pipelines/live/feeds/cuts.py",
        "(count < size and not at_end)",
        "False",
        f"{PIPELINE}::test_batches_are_cut_by_position_not_by_what_a_read_brings",
    ),
    Mutation(
        "a version is written over",
        f"{REPLAY} (19)",
        "exfm/snapshots/checkpoint.py",
        "    if not same:\n        raise ModelError(",
        "    if False:\n        raise ModelError(",
        CHECKPOINT,
    ),
    Mutation(
        "a checkpoint is written where it will be read",
        f"{ONCE} (20)",
        "exfm/snapshots/checkpoint.py",
        'staging = Path(root) / f".{name}.{group.attempt}"',
        "staging = target",
        CHECKPOINT,
    ),
    Mutation(
        "what killed ranks left is taken for what this start's ranks wrote",
        f"{REPLAY} (19)",
        "exfm/snapshots/checkpoint.py",
        'f".{name}.{group.attempt}"',
        'f".{name}.ranks"',
        PIECES,
    ),
    Mutation(
        "a checkpoint is complete without a rank's part",
        f"{ONCE} (15)",
        "exfm/snapshots/staging.py",
        "    while missing:",
        "    while False:",
        PIECES,
    ),
    Mutation(
        "the rows of a table that grew begin anew",
        REPLAY,
        "exfm/embeddings/table.py",
        "Repeated(stored, self.rows) if self.hashed else Appended(stored, initial)",
        "Appended(stored, initial)",
        "tests/unit/exfm/models/growth/test_refit.py -k twice_the_rows",
    ),
    Mutation(
        "a damaged checkpoint is not noticed",
        ONCE,
        "exfm/snapshots/stored.py",
        "if (computed := digest.hexdigest()) != piece.sha256:",
        "if False:",
        CHECKPOINT,
    ),
    Mutation(
        "the teacher's row-wise AdaGrad begins anew",
        f"{REPLAY} (20)",
        "exfm/embeddings/table.py",
        "        copy_tensors(self.tensors(), tensors)\n",
        '        copy_tensors({n: t for n, t in self.tensors().items() if n in tensors and n.endswith("/weight")},\n'
        '                     {n: t for n, t in tensors.items() if n.endswith("/weight")})\n',
        TEACHER,
    ),
    Mutation(
        "the adapter, and all else that corrects the teacher, begin anew",
        f"{REPLAY} (20)",
        "exfm/models/student.py",
        "tensors |= self._corrections.state()",
        "pass",
        STUDENT,
    ),
    Mutation(
        "a student's histories begin anew",
        f"{REPLAY} (20)",
        "exfm/models/student.py",
        'tensors |= {f"history/{key}": tensor for key, tensor in self.histories.tensors().items()}',
        "pass",
        "tests/unit/exfm/features/test_history.py",
    ),
    Mutation(
        "a row is among the statistics that it is scaled by",
        HONEST,
        "exfm/models/student.py",
        "        batch = self.statistics.complete(used)\n",
        "        self.statistics.add(self.statistics.sums(used))\n        batch = self.statistics.complete(used)\n",
        "tests/unit/exfm/features/test_statistics.py",
    ),
    Mutation(
        "a student's statistics begin anew",
        f"{REPLAY} (20)",
        "exfm/models/student.py",
        "tensors |= self.statistics.tensors()",
        "pass",
        "tests/unit/exfm/features/test_statistics.py",
    ),
    Mutation(
        "a student predicts with what is known in training only",
        SERVED,
        "exfm/models/student.py",
        "batch = self.statistics.complete(self.as_served(batch))",
        "batch = self.statistics.complete(batch)",
        "tests/unit/exfm/features/test_as_served.py",
    ),
    Mutation(
        "predictions of a future that did not happen are kept",
        f"{ONCE} (25)",
        "pipelines/live/training/predictions.py",
        "if _last(part) > position:",
        "if False:",
        "tests/unit/pipelines/live/training/test_predictions.py",
    ),
    Mutation(
        "the twin learns from the teacher",
        "columns that are compared (26)",
        "exfm/models/student_config.py",
        'return self.model_copy(update={"arm": Arm(kind="none")})',
        "return self",
        STUDENT,
    ),
    Mutation(
        "a gradient that is not finite reaches the teacher's tables",
        "quarantine (21)",
        "exfm/models/teacher.py",
        "if not self._agree(torch.stack(torch._foreach_norm([*pooled, *grads.values()]))):",
        "if False:",
        TEACHER,
    ),
    Mutation(
        "a gradient that is not finite reaches a student's weights",
        "quarantine (21)",
        "exfm/models/student.py",
        "if squares < LARGEST**2 else None",
        "if True else None",
        STUDENT,
    ),
    Mutation(
        "hashes differ from process to process",
        REPLAY,
        "exfm/features/transforms.py",
        "return mixed(_int64(ids).to_numpy().view(np.uint64))",
        "return mixed(_int64(ids).to_numpy().view(np.uint64) ^ np.uint64(hash('salt') % 2**31))",
        "tests/unit/exfm/features/test_transforms.py",
    ),
    Mutation(
        "features are stored hashed",
        RAW,
        "pipelines/live/workers/augmentation/block.py",
        'columns["event_date"] = _dates',
        'columns["user_id"] = pa.array(rows["user_id"].to_numpy() % 1000)\n    columns["event_date"] = _dates',
        f"{PIPELINE}::test_the_lake_holds_features_as_they_were_sent",
    ),
    Mutation(
        "refused rows are dropped",
        KEPT,
        "streaming/intake/intake.py",
        "self._merge.push(partition, decoded.batch, decoded.dead)",
        "self._merge.push(partition, decoded.batch, [])",
        f"{INPUTS}::test_each_broken_record_is_a_dead_letter_once_and_the_others_go_on",
    ),
    Mutation(
        "an export that differs is served",
        SERVED,
        "exfm/models/served.py",
        "if not difference <= PARITY:",
        "if False:",
        "tests/unit/exfm/models/test_served.py",
    ),
    Mutation(
        "a student that is worse than its twin is champion",
        SERVED,
        "pipelines/report/results/champion.py",
        "if Outcome.LOST not in all_outcomes:",
        "if True:",
        f"{REGISTERED}::test_a_student_that_is_significantly_worse_leaves_its_place_to_its_twin",
    ),
    Mutation(
        "a registered model scores rows that ingestion refuses",
        SERVED,
        "pipelines/served_model.py",
        "batch, refusals = checked(frame, self.rules)",
        "batch, refusals = checked(frame, self.rules)[0], {}",
        f"{REGISTERED}::test_what_ingestion_refuses_is_refused_with_its_words",
    ),
    Mutation(
        "rows are deleted that a reader still needs",
        f"{KEPT} (24)",
        "streaming/lake/housekeeping.py",
        "position = None if held is None else held.position",
        "position = None",
        "tests/contracts/test_lake_retention.py",
    ),
    Mutation(
        "a new writer does not raise the epoch",
        f"{ONCE} (4)",
        "streaming/lake/writer.py",
        "self.epoch = self._number(EPOCH) + 1",
        "self.epoch = self._number(EPOCH)",
        f"{LAKE}::test_the_older_of_two_writers_is_fenced",
    ),
    Mutation(
        "of duplicates the last one wins",
        f"{ONCE} (10)",
        "streaming/settlement/settlement.py",
        "first[place[candidate][::-1]] = candidate[::-1]",
        "first[place[candidate]] = candidate",
        f"{SETTLEMENT} {PROPERTIES}",
    ),
    Mutation(
        "a reader whose file is damaged holds nothing",
        f"{KEPT} (24)",
        "streaming/lake/readers.py",
        "return Reader(self._name(path), NOTHING_YET, path.stat().st_mtime, damaged=True, follows=follows)",
        "return None",
        "tests/unit/streaming/lake/test_readers.py",
    ),
    Mutation(
        "the lake knows nothing of the runs that follow it",
        f"{KEPT} (24)",
        "streaming/lake/readers.py",
        'self.folder.glob("**/*.json")',
        'self.folder.glob("*.json")',
        "tests/contracts/test_lake_retention.py::test_rows_of_runs_that_follow_the_lake_are_kept_until_they_expire",
    ),
    Mutation(
        "what a run continues from may have been altered",
        f"{ONCE} (11)",
        "streaming/store/seal.py",
        "if value.pop(SEAL) != _digest(value):",
        "if value.pop(SEAL) is None:",
        "tests/fuzz/test_manifests.py",
    ),
    Mutation(
        "a machine that comes back writes beside its worker's successor",
        ONCE,
        "streaming/store/working_copy.py",
        "                self.store.read(self.share.successor)\n",
        "                self.store.read(f'{self.share.successor}.not')\n",
        "tests/unit/streaming/store/test_shares.py",
    ),
    Mutation(
        "a snapshot that is being put is scored with",
        PACE,
        "streaming/store/working_copy.py",
        'if f"{folder}/{_LAST}" in there:',
        "if folder:",
        "tests/unit/streaming/store/test_shares.py",
    ),
    Mutation(
        "a copy that has not fetched a file deletes it for all",
        KEPT,
        "streaming/store/working_copy.py",
        "own = [key for key in self._known if self.share is None or self.share.owns(key)]",
        "own = list(self._known)",
        "tests/unit/streaming/store/test_shares.py",
    ),
    Mutation(
        "logits of a teacher that died long ago",
        f"{PACE} (18)",
        "pipelines/live/rules/scoring_snapshot.py",
        "newest_age_s > max_age_s:",
        "newest_age_s > 2**60:",
        "tests/unit/pipelines/live/rules/test_scoring_snapshot.py",
    ),
    Mutation(
        "what becomes of a message depends on what it is read with",
        REPLAY,
        "streaming/messages/codecs.py",
        "if not self._parses(value):\n                    faults",
        "if True:\n                    faults",
        "tests/unit/streaming/messages/test_ipc.py",
    ),
    Mutation(
        "a message takes what it says it needs",
        "fuzz",
        "streaming/messages/ipc.py",
        "        check_declared(messages, max_bytes)\n",
        "",
        "tests/unit/streaming/messages/test_ipc.py",
    ),
)
