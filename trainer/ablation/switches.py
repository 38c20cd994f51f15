"""The techniques that can be switched, each with its settings off and on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import Precision, TrainConfig

Settings = Mapping[str, Any]
"""Values by setting, such as ``parallel.overlap``."""

Chosen = Callable[[TrainConfig], Settings]

COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True, slots=True)
class Switch:
    """A technique.

    ``is_for_speed``: it is part of "together", and meant to make training faster; others save memory, serve other
    devices and networks, or are a part of one that is. ``beside``: what it can do nothing without, and what that is in
    words: both sides of its comparison have it. ``needs``: why it can do nothing here; None where it can.
    """

    name: str
    meaning: str
    off: Settings
    on: Chosen
    is_for_speed: bool = True
    needs: Callable[[TrainConfig], str | None] = lambda config: None
    beside: Settings = field(default_factory=dict)
    beside_meaning: str = ""


def _axis(name: str, least: int = 2) -> Callable[[TrainConfig], str | None]:
    def needs(config: TrainConfig) -> str | None:
        size = config.topology().size(name)
        return None if size >= least else f"it needs {name} {least} or more, and {name} is {size}"

    return needs


def _is_fp32(config: TrainConfig) -> str | None:
    precision = config.model.precision
    return None if precision is Precision.FP32 else f"model.precision is {precision}, in the base as well"


def _can_compile(_: TrainConfig) -> str | None:
    if os.environ.get("CXX") or any(shutil.which(name) for name in COMPILERS):
        return None
    return f"it needs a C++ compiler, such as {COMPILERS[0]}, and there is none on the PATH"


def _fixed(**settings: Any) -> Chosen:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return lambda config: named


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "interleaved",
        "two virtual stages on each pipeline rank; they need the p2p-overlap, too",
        {"parallel.chunks": 1},
        _fixed(parallel__chunks=2, parallel__overlap_p2p=True, parallel__recv_ahead=2),
        needs=_axis("pp"),
    ),
    Switch(
        "parallel-block",
        "attention and feed-forward from the same input",
        {"model.parallel_block": False},
        _fixed(model__parallel_block=True),
    ),
    Switch(
        "window",
        "attention over a quarter of the sequence",
        {"model.window": None},
        lambda config: {"model.window": max(1, config.model.sequence // 4)},
    ),
    Switch(
        "ring",
        "tensor-parallel collectives cut into messages beside the multiplication",
        {"parallel.ring": False},
        _fixed(parallel__ring=True),
        needs=_axis("tp"),
    ),
    Switch(
        "p2p-overlap",
        "sends that are not waited for, receives posted two actions ahead",
        {"parallel.overlap_p2p": False, "parallel.recv_ahead": 0},
        _fixed(parallel__overlap_p2p=True, parallel__recv_ahead=2),
        needs=_axis("pp"),
    ),
    Switch(
        "recv-ahead",
        "receives posted two actions ahead, where sends are not waited for",
        {"parallel.recv_ahead": 0},
        _fixed(parallel__recv_ahead=2),
        is_for_speed=False,
        needs=_axis("pp"),
        beside={"parallel.overlap_p2p": True},
        beside_meaning="sends that are not waited for, and no receive posted ahead",
    ),
    Switch(
        "dp-overlap",
        "data-parallel communication beside compute and data loading",
        {"parallel.overlap": False},
        _fixed(parallel__overlap=True, parallel__overlap_gather=True, parallel__overlap_reduce=True),
        needs=_axis("dp"),
    ),
    Switch(
        "gather-overlap",
        "of dp-overlap, the weights alone: gathered while the next batch is loaded",
        {"parallel.overlap": False},
        _fixed(parallel__overlap=True, parallel__overlap_gather=True, parallel__overlap_reduce=False),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "reduce-overlap",
        "of dp-overlap, the gradients alone: reduced behind the backward",
        {"parallel.overlap": False},
        _fixed(parallel__overlap=True, parallel__overlap_gather=False, parallel__overlap_reduce=True),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "prefetch",
        "batches drawn by a thread while the steps before are trained",
        {"data.prefetch": 0},
        _fixed(data__prefetch=2),
    ),
    Switch(
        "compile",
        "attention and activation through torch.compile",
        {"train.compile": False},
        _fixed(train__compile=True),
        needs=_can_compile,
    ),
    Switch(
        "large-batch",
        "LAMB with four times the micro-batches of a step",
        {"train.optimizer": "adamw"},
        lambda config: {
            "train.optimizer": "lamb",
            "train.batch": 4 * config.train.batch,
            "train.microbatches": 4 * config.train.microbatches,
        },
    ),
    Switch(
        "gpipe",
        "all forwards first, in place of alternating forwards and backwards",
        {"parallel.schedule": "1f1b"},
        _fixed(parallel__schedule="gpipe"),
        is_for_speed=False,
        needs=_axis("pp"),
    ),
    Switch(
        "tied",
        "one matrix as embedding and as output",
        {"model.tied": False},
        _fixed(model__tied=True),
        is_for_speed=False,
    ),
    Switch(
        "clip-factor",
        "gradients clipped at twice the recent mean of their norms",
        {"train.clip_factor": 0.0},
        _fixed(train__clip_factor=2.0),
        is_for_speed=False,
    ),
    Switch(
        "bf16",
        "weights, activations and their messages in half the bytes",
        {},
        _fixed(model__precision="bf16"),
        is_for_speed=False,
        needs=_is_fp32,
    ),
    Switch(
        "pods",
        "gradients reduced inside two pods, then across",
        {"parallel.pod": 0},
        lambda config: {"parallel.pod": config.parallel.dp // 2},
        is_for_speed=False,
        needs=_axis("dp", 4),
    ),
    Switch(
        "zero-2",
        "gradients shared by the replicas too",
        {"parallel.zero": 1},
        _fixed(parallel__zero=2),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "zero-3",
        "weights shared by the replicas too",
        {"parallel.zero": 1},
        _fixed(parallel__zero=3),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "recompute-selective",
        "the insides of attention and activation computed again in the backward",
        {"train.recompute": "none"},
        _fixed(train__recompute="selective"),
        is_for_speed=False,
    ),
    Switch(
        "recompute-full",
        "whole layers computed again in the backward",
        {"train.recompute": "none"},
        _fixed(train__recompute="full"),
        is_for_speed=False,
    ),
)
