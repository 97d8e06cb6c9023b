"""Offline training on logged rows, without a broker: the common base of replays and scaling runs.

rows      one stream of settled rows that many models learn from
data      the rows of one student, as batches
pool      jobs in several processes
mapped    arrays with an entry for every row, in files
parts     results that are done, as files that the next start finds again
judging/  how models compare on the same rows: figures, segments, decisions
report/   a replay's report for people: terminal, Markdown, page
spec/     parts of a replay's spec: arms, conditions, which rows
logits/   teachers in lockstep, stored snapshots, faults
replay/   many students over logged rows and teacher logits: which arm pays, tuned or as they are
verify/   a student retrained is what its run left, in bits
scaling/  teachers of growing size: what more FLOPs buy
"""
