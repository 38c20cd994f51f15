"""The optimizer's step on this rank's shards: norms over all axes, clipping, AdamW or LAMB, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .comm import Channel
from .config import OptimizationConfig, Optimizer
from .finite import not_finite
from .flat import Bucket, FlatChunk
from .probe import Probe
from .updates import adamw_update, lamb_directions, lamb_update

CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""

NORM_DECAY = 0.98
"""Of the running mean of gradient norms: about the last 50 steps count."""


def learning_rate(config: OptimizationConfig, step: int) -> float:
    """Rate of a step: a line from zero over the warm-up, then half a cosine to the smallest at the last step."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    span = max(1, config.steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    height = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + height * 0.5 * (1 + math.cos(math.pi * progress))


class ShardedOptimizer:
    """AdamW or LAMB whose master weights and moments are split over data-parallel ranks.

    ``ends`` joins the two stages that share a tied matrix, on their ranks. ``norm_history`` is the adaptive clip's
    state, float64 and the same on every rank: the decayed sum of gradient norms, and of their weights.
    """

    def __init__(
        self,
        flats: Sequence[FlatChunk],
        tp: Channel,
        world: Channel,
        config: OptimizationConfig,
        probe: Probe,
        ends: Channel | None = None,
    ) -> None:
        self.flats, self._tp, self._world, self._config, self._probe = flats, tp, world, config, probe
        self._ends = ends
        self._dp = flats[0].buckets[0].channel
        self.updates = 0
        self.norm_history = torch.zeros(2, dtype=torch.float64, device=world.funnel.device)

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets of this rank."""
        return [bucket for flat in self.flats for bucket in flat.buckets]

    def step(self, number: int, loss: Tensor | None, *, is_asked: bool = False) -> Tensor:
        """Update the shards from their gradients.

        ``loss`` is this rank's part of the job's mean loss, None if it has none; ``is_asked``: whether this rank is
        asked to stop. Returns [loss of the job, gradient norm before clipping, ranks that are asked], float64, the same
        on every rank: all three travel in one all-reduce.
        """
        is_swapped = self._world.funnel.switches.swaps_order()
        for flat in () if is_swapped else self.flats:
            flat.finish_reduce()
        with self._probe.span("grad_clip"):
            metrics = self._reduce_metrics(loss, is_asked)
            for flat in self.flats if is_swapped else ():
                flat.reduce()
                flat.finish_reduce()
            metrics[1].sqrt_()
            if metrics.device.type == "cpu" and not bool(metrics[1].isfinite()):  # all ranks have the same one
                raise not_finite(number, what="gradient norm")
            scale = (self._clip_limit(metrics[1]) / (metrics[1] + CLIP_EPSILON)).clamp(max=1.0)
        with self._probe.span("optimizer"):
            self.updates += 1
            self._update(learning_rate(self._config, number) * self._world.funnel.switches.stretch(), scale)
        return metrics

    def _reduce_metrics(self, loss: Tensor | None, is_asked: bool) -> Tensor:
        """Sum [loss, squared gradient norm, ranks asked] over the world, after completing norms' and tied gradients."""
        metrics = torch.zeros(3, dtype=torch.float64, device=self._world.funnel.device)
        metrics[2] = float(is_asked)
        if loss is not None:
            metrics[0] = loss
        for flat in self.flats:
            if self._tp.size > 1:
                self._tp.all_reduce(flat.replicated.gradient_shard)
            for bucket in flat.buckets:
                if bucket.copies > 1:
                    assert self._ends is not None
                    self._ends.all_reduce(bucket.gradient_shard)
                norm = torch.linalg.vector_norm(bucket.gradient_shard, dtype=torch.float64)
                metrics[1] += norm.square() / ((self._tp.size if bucket.is_replicated else 1) * bucket.copies)
        if self._world.size > 1:
            self._world.all_reduce(metrics)
        return metrics

    def _clip_limit(self, norm: Tensor) -> Tensor:
        """The norm to clip at: ``clip``, or ``clip_factor`` times the mean of earlier norms where that is less.

        A norm counts as what it was clipped to, so that a spike does not let the next one through.
        """
        config = self._config
        limit = torch.full_like(norm, config.clip)
        if config.clip_factor > 0:
            total, weight = self.norm_history
            limit = torch.where(weight > 0, limit.minimum(config.clip_factor * total / weight), limit)
            seen = torch.stack([norm.minimum(limit), torch.ones_like(norm)])
            self.norm_history.lerp_(seen, 1 - NORM_DECAY)
        return limit

    def _update(self, rate: float, scale: Tensor) -> None:
        config = self._config
        for bucket in self.buckets:
            bucket.gradient_shard.mul_(scale.to(bucket.gradient_shard.dtype))
        if config.optimizer is Optimizer.LAMB:
            directions = lamb_directions(self.buckets, config, self.updates)
            lamb_update(self.buckets, directions, rate, self._dp, self._tp)
        else:
            for bucket in self.buckets:
                adamw_update(bucket, config, rate, self.updates)
        for bucket in self.buckets:
            if bucket.channel.size == 1:
                bucket.gather(wait=True)
            bucket.clear_gradients()
