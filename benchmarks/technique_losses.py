"""What techniques do to the loss: at equal steps, LAMB at equal tokens, and what clipping does to its rises.

One process each, so that the losses depend on neither load nor layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.ranks import run_ranks
from benchmarks.technique_pairs import BASE, new_trainer, with_settings
from megascope.trainer.config import Optimizer, Precision, TrainConfig

TIMEOUT_S = 3600.0
SEEDS = 3
QUALITY: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "parallel block": {"model.parallel_block": True},
    "window": {"model.window": 16},
    "tied": {"model.tied": True},
    "dropout": {"model.dropout": 0.1},
    "bf16": {"model.precision": Precision.BF16},
    "adaptive clip": {"train.clip_factor": 2.0},
}
QUALITY_STEPS = 120

CURVES: Mapping[str, tuple[Optimizer, int, float]] = {
    "adamw, batch 16": (Optimizer.ADAMW, 16, 3e-3),
    "adamw, batch 64": (Optimizer.ADAMW, 64, 3e-3),
    "adamw, batch 64, twice the rate": (Optimizer.ADAMW, 64, 6e-3),
    "lamb, batch 64": (Optimizer.LAMB, 64, 4e-2),
    "lamb, batch 64, twice the rate": (Optimizer.LAMB, 64, 8e-2),
}
CURVE_SEQUENCES, CURVE_POINTS = 320 * 16, 4

CLIP_STEPS, BAD_EVERY, LOOK_EVERY = 160, 20, 10
RATES = {"rate 0.003": 3e-3, "rate 0.03": 3e-2}
NO_BOUND = 1e9
CLIPS: Mapping[str, Mapping[str, Any]] = {
    "none": {"train.clip": NO_BOUND},
    "fixed": {"train.clip": 1.0},
    "adaptive": {"train.clip": NO_BOUND, "train.clip_factor": 2.0},
    "fixed and adaptive": {"train.clip": 1.0, "train.clip_factor": 2.0},
}


def quality() -> dict[str, Any]:
    """Evaluation loss of one process after so many steps, by technique and seed."""
    settings = _schedule(QUALITY_STEPS, 3e-3) | {"train.eval_every": QUALITY_STEPS, "train.eval_batches": 8}
    result: dict[str, Any] = {
        "tokens": QUALITY_STEPS * BASE.train.batch * BASE.model.sequence,
        "sampling": str(BASE.data.sampling),
    }
    for name, own in QUALITY.items():
        config = with_settings(BASE, {**settings, **own})
        result[name] = [round(run.eval_losses[QUALITY_STEPS - 1], 4) for run in _seeds(config)]
    return result


def lamb() -> dict[str, Any]:
    """Evaluation losses of all seeds after equal tokens: AdamW, and both at four times the batch."""
    result: dict[str, Any] = {"sampling": str(BASE.data.sampling)}
    for name, (optimizer, batch, rate) in CURVES.items():
        steps = CURVE_SEQUENCES // batch
        own = {"train.batch": batch, "train.optimizer": optimizer, "train.eval_every": steps // CURVE_POINTS}
        config = with_settings(BASE, {**_schedule(steps, rate), **own, "train.eval_batches": max(1, 128 // batch)})
        runs = [run.eval_losses for run in _seeds(config)]
        tokens = batch * config.model.sequence
        curve = {(step + 1) * tokens: [round(run[step], 4) for run in runs] for step in runs[0]}
        result[name] = {"learning_rate": rate, "eval_loss_by_tokens": curve}
    return result


def clip() -> dict[str, Any]:
    """What bad batches do to the evaluation loss with each way of clipping, by rate and seed (`swings`).

    Every 20th batch is bad: of one token alone, from which the gradient is many times as long as from others.
    """
    settings = {"train.eval_every": LOOK_EVERY, "train.eval_batches": 4}
    result: dict[str, Any] = {"steps": CLIP_STEPS, "bad_every": BAD_EVERY, "sampling": str(BASE.data.sampling)}
    for name, rate in RATES.items():
        result[name] = {}
        for side, own in CLIPS.items():
            config = with_settings(BASE, {**_schedule(CLIP_STEPS, rate), **settings, **own})
            result[name][side] = [
                swings(list(run.eval_losses.values()), run.grad_norms) for run in _seeds(config, _spoil)
            ]
    return result


def swings(losses: Sequence[float], norms: Sequence[float]) -> dict[str, float]:
    """The last evaluation loss, by how much it rose at most from one evaluation to the next, and all rises together;

    the median gradient norm before clipping, and the largest.
    """
    rises = np.diff(losses).clip(min=0)
    figures = {
        "eval_loss": losses[-1],
        "largest_rise": rises.max(),
        "rises": rises.sum(),
        "median_norm": np.median(norms),
        "largest_norm": max(norms),
    }
    return {name: round(float(value), 4) for name, value in figures.items()}


def _spoil() -> None:
    """Make some of this process's training batches of one token alone, which the model does not expect."""
    from megascope.trainer.data.batches import Batches, Split

    read = Batches.rows

    def spoiled(batches: Any, split: Any, number: int, first: int, last: int) -> Any:
        rows = read(batches, split, number, first, last)
        if split is Split.TRAIN and number % BAD_EVERY == BAD_EVERY - 1:
            rows[:] = number % 256
        return rows

    Batches.rows = spoiled  # type: ignore[method-assign, assignment]


def _schedule(steps: int, rate: float) -> dict[str, Any]:
    return {
        "train.steps": steps,
        "train.microbatches": 1,
        "train.learning_rate": rate,
        "train.min_learning_rate": rate / 10,
        "train.warmup_steps": steps // 10,
        "train.log_every": 10**6,
    }


def _seeds(config: TrainConfig, prepare: Callable[[], None] = lambda: None) -> list[Any]:
    """The results of a training with each seed, of its weights and its order of data; ``prepare`` comes before it."""
    return [_trained(with_settings(config, {"train.seed": seed}), prepare) for seed in range(SEEDS)]


def _trained(config: TrainConfig, prepare: Callable[[], None]) -> Any:
    def work() -> Any:
        prepare()
        return new_trainer(config).run()

    return run_ranks(1, work, timeout_s=TIMEOUT_S)[0]
