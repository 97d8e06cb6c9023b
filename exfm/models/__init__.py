"""Teachers and students: networks, training steps, and served models.

units           from looked-up embeddings to embeddings of one width
adam            the optimizer of dense weights
teacher_net     the teacher's network
representation  what it hands out beside its logits
teacher_config  its settings
teacher         a teacher in training, on one or several ranks
scorer          a teacher that only scores
teacher_wide    the teacher's linear part
student         a student in training
student_config  its settings
student_wide    its linear part
stack           a network's logit and a linear model's, weighed online
changes         what of a student its batches changed
served          what is served of a student
compiled        its machine code
bad_rows        rows that spoil a step, left out of it
engine          what learns, in one form for live workers and offline runs
growth/         trained models that change: tables that grow, features that come and go
"""
