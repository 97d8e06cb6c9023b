"""Distillation: a student learns from its teacher's logged logits (ExFM, arXiv 2502.17494).

    arm           which losses and corrections a student has, as config; presets by name
    loss          the objective of each arm, from logits and labels to one scalar
    targets       what of a batch it is made of: corrected logits of the teacher, and the rows that count
    correction    what a correction of the teacher is: learn, apply, state
    corrections   those of one student, in their order
    platt, adapter, advantage   one correction each
    representation   the loss of a head that predicts the teacher's representation
    residuals     what a teacher got wrong of late, by user, by item …

The objective needs torch, numba and pydantic alone. In a training loop of your own:

>>> import torch
>>> from exfm.distillation import Arm, objective, scale_gradient
>>> arm = Arm(kind="auxiliary_head", weight=1.5)
>>> trunk, serving, auxiliary = torch.nn.Linear(16, 32), torch.nn.Linear(32, 1), torch.nn.Linear(32, 1)
>>> optimizer = torch.optim.Adam(torch.nn.ModuleList([trunk, serving, auxiliary]).parameters(), lr=0.01)
>>> for _ in range(3):
...     x, label, teacher_logit = torch.randn(64, 16), torch.randint(2, (64, 1)).float(), torch.randn(64, 1)
...     h = trunk(x).relu()
...     z_D = auxiliary(scale_gradient(h, arm.gradient_scale))
...     loss = objective(arm, serving(h), label, teacher_logit, z_D=z_D).total
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
