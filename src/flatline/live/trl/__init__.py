"""A live trainer under the microscope: what a probe looks at.

    subject = Subject(trainer)                 # any TRL GRPOTrainer
    subject = OurSubject(built)                # one of ours (`flatline.training.subject`)

Measurements are taken when they are first asked for, on one batch that all share, and kept. Every
one leaves the trainer as it found it, bit for bit (`Subject.untouched`): weights, gradients,
optimizer, random numbers, TRL's buffers. What cannot be put back is what a reward function of the
user keeps for itself.

What is returned is plain numpy (`flatline.live.records`); probes need no torch.
"""

from flatline.live.records import (
    VISIBLE_STEP,
    AloneVsBatch,
    Batch,
    ContextEffect,
    DataOrder,
    Delivery,
    GradientCensus,
    HeldoutPath,
    OneStep,
    Oracle,
    OracleCase,
    ReferenceGap,
    Replay,
    ScoredTwice,
)
from flatline.live.trl.subject import Subject

__all__ = [
    "VISIBLE_STEP",
    "AloneVsBatch",
    "Batch",
    "ContextEffect",
    "DataOrder",
    "Delivery",
    "GradientCensus",
    "HeldoutPath",
    "OneStep",
    "Oracle",
    "OracleCase",
    "ReferenceGap",
    "Replay",
    "ScoredTwice",
    "Subject",
]
