"""The segments of the trainer's own work, in which faults of a rank can act."""

from __future__ import annotations

from ...profiler.vocabulary import SegmentKind

KINDS = {
    "setup": SegmentKind.INIT,
    "setup_groups": SegmentKind.INIT,
    "setup_weights": SegmentKind.INIT,
    "setup_text": SegmentKind.INIT,
    "setup_tokenizer": SegmentKind.INIT,
    "setup_tokens": SegmentKind.INIT,
    "data": SegmentKind.DATA,
    "data_read": SegmentKind.DATA,
    "forward": SegmentKind.COMPUTE,
    "backward": SegmentKind.COMPUTE,
    "loss": SegmentKind.COMPUTE,
    "grad_clip": SegmentKind.OPTIMIZER,
    "optimizer": SegmentKind.OPTIMIZER,
    "eval": SegmentKind.EVAL,
    "eval_forward": SegmentKind.EVAL,
    "eval_loss": SegmentKind.EVAL,
    "checkpoint_stage": SegmentKind.CHECKPOINT,
    "checkpoint_snapshot": SegmentKind.CHECKPOINT,
    "checkpoint_save": SegmentKind.CHECKPOINT,
    "checkpoint_write": SegmentKind.CHECKPOINT,
    "checkpoint_sync": SegmentKind.CHECKPOINT,
    "checkpoint_rename": SegmentKind.CHECKPOINT,
    "checkpoint_commit": SegmentKind.CHECKPOINT,
    "checkpoint_load": SegmentKind.CHECKPOINT,
    "checkpoint_find": SegmentKind.CHECKPOINT,
    "checkpoint_read": SegmentKind.CHECKPOINT,
    "checkpoint_share": SegmentKind.CHECKPOINT,
    "checkpoint_gather": SegmentKind.CHECKPOINT,
    "gc": SegmentKind.GC,
}
"""The segments of the trainer, besides communication."""
