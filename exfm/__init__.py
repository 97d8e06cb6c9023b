"""ExFM: one large teacher and many small students that distil from its logged logits (arXiv 2502.17494).

This package is the models. They run in any training loop: no Ray, no Kafka, no lake. Each name below is loaded on first
use, so `import exfm` is instant, and code that uses the losses alone needs torch, numba and pydantic alone.

    losses     Arm, objective, scale_gradient: what a student learns from labels and from a teacher's logits
    features   FeatureSet of SparseFeature, DenseFeature, SequenceFeature, HistoryFeature
    rows       BatchBuilder makes a Batch from Arrow
    models     Student (StudentConfig), Teacher (TeacherConfig); what is served: ServedStudent, save_served, load_served
    metrics    normalised_entropy, auc, gauc, calibration; metrics_of gives all at once, Progressive keeps running sums,
               paired_gain compares two models on the same rows
    errors     ModelError, ConfigError

`exfm.distillation`, `exfm.metrics` and `exfm.errors` offer their names at once. Other folders (features, embeddings,
interactions, kernels, models, baselines, parallel, snapshots) have more, imported from the file that
defines it: `from exfm.interactions.dcn import DCN`.

A student learns from rows that carry a teacher's logits, as those of a run's lake do. Each batch is scored before it is
learned from, so the metrics are those of unseen rows. What is exported predicts what the student predicts.

>>> import numpy as np
>>> import pyarrow as pa
>>> import exfm
>>> features = exfm.FeatureSet(
...     sparse=[exfm.SparseFeature(name="user", rows=100), exfm.SparseFeature(name="ad", rows=20)],
...     dense=[exfm.DenseFeature(name="bid", transform="log1p")])
>>> arm = exfm.Arm(kind="auxiliary_head", weight=1.5)
>>> student = exfm.Student(exfm.StudentConfig(arm=arm), features, tasks=["ctr"], seed=0)
>>> build, ne = exfm.BatchBuilder(features, ["ctr"]), exfm.Progressive(window_rows=1024)
>>> random = np.random.default_rng(0)
>>> for _ in range(30):
...     ad, truth = random.integers(20, size=256), np.linspace(-3, 1, 20)
...     clicks = (random.logistic(size=256) < truth[ad]).astype(np.int8)
...     rows = pa.table({"user": random.integers(100, size=256), "ad": ad, "bid": random.random(256),
...                      "label_ctr": clicks, "teacher_logit_ctr": truth[ad]})
...     step = student.train_step(build(rows))
...     closed = ne.update(step.logits[:, 0], clicks)
>>> ne.lifetime().rows, ne.window().ne < ne.lifetime().ne < 1.1
(7680, True)
>>> bool(np.allclose(student.export().score(build(rows)), student.score(build(rows)), atol=1e-6))
True
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
