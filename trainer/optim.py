"""AdamW on this rank's shards, gradient clipping over all axes, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .comm import Channel
from .config import OptimizationConfig
from .flat import Bucket, FlatChunk
from .probe import Probe

CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


def learning_rate(config: OptimizationConfig, step: int) -> float:
    """Rate of a step: a line from zero over the warm-up, then half a cosine to the smallest at the last step."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    span = max(1, config.steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    height = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + height * 0.5 * (1 + math.cos(math.pi * progress))


class ShardedAdamW:
    """AdamW (Loshchilov and Hutter 2019) whose master weights and moments are split over data-parallel ranks."""

    def __init__(
        self, flats: Sequence[FlatChunk], tp: Channel, world: Channel, config: OptimizationConfig, probe: Probe
    ) -> None:
        self.flats, self._tp, self._world, self._config, self._probe = flats, tp, world, config, probe
        self.updates = 0

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets of this rank."""
        return [bucket for flat in self.flats for bucket in flat.buckets]

    def step(self, number: int, loss: Tensor | None) -> Tensor:
        """Update the shards from their gradients.

        ``loss`` is this rank's part of the job's mean loss, None if it has none. Returns [loss of the job, gradient
        norm before clipping], float64, the same on every rank: both travel in one all-reduce.
        """
        is_swapped = self._world.funnel.switches.swaps_order()
        for flat in () if is_swapped else self.flats:
            flat.finish_reduce()
        with self._probe.span("grad_clip"):
            metrics = self._reduce_metrics(loss)
            for flat in self.flats if is_swapped else ():
                flat.reduce()
                flat.finish_reduce()
            metrics[1].sqrt_()
            scale = (self._config.clip / (metrics[1] + CLIP_EPSILON)).clamp(max=1.0)
        with self._probe.span("optimizer"):
            self.updates += 1
            rate = learning_rate(self._config, number)
            for bucket in self.buckets:
                self._update(bucket, rate, scale)
                bucket.gradients.zero_()
        return metrics

    def _reduce_metrics(self, loss: Tensor | None) -> Tensor:
        """Sum [loss, squared gradient norm] over the world, after completing the gradients of the norms."""
        device = self._world.funnel.device
        metrics = torch.zeros(2, dtype=torch.float64, device=device)
        if loss is not None:
            metrics[0] = loss
        for flat in self.flats:
            if self._tp.size > 1:
                self._tp.all_reduce(flat.replicated.gradient_shard)
            for bucket in flat.buckets:
                norm = torch.linalg.vector_norm(bucket.gradient_shard, dtype=torch.float64)
                metrics[1] += norm.square() / (self._tp.size if bucket.is_replicated else 1)
        if self._world.size > 1:
            self._world.all_reduce(metrics)
        return metrics

    def _update(self, bucket: Bucket, rate: float, scale: Tensor) -> None:
        config = self._config
        gradient = bucket.gradient_shard.mul_(scale.to(bucket.gradient_shard.dtype))
        if not bucket.is_replicated:
            bucket.master.mul_(1 - rate * config.weight_decay)
        bucket.first_moment.lerp_(gradient, 1 - config.beta1)
        bucket.second_moment.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        first_correction = 1 - config.beta1**self.updates
        second_correction = 1 - config.beta2**self.updates
        denominator = bucket.second_moment.sqrt().div_(math.sqrt(second_correction)).add_(config.epsilon)
        bucket.master.addcdiv_(bucket.first_moment, denominator, value=-rate / first_correction)
        if bucket.channel.size == 1:
            bucket.gather(wait=True)
