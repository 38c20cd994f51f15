"""Update rules on shards: AdamW element by element, LAMB with a norm of every matrix over all ranks that hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .comm import Channel
from .config import OptimizationConfig
from .flat import Bucket
from .hierarchy import Replicas


def adamw_update(bucket: Bucket, config: OptimizationConfig, rate: float, updates: int) -> None:
    """AdamW (Loshchilov and Hutter 2019); ``updates`` counts from 1. Norms take no weight decay."""
    if not bucket.is_replicated:
        bucket.master.mul_(1 - rate * config.weight_decay)
    denominator = _moments(bucket, config, updates)
    bucket.master.addcdiv_(bucket.first_moment, denominator, value=-rate / (1 - config.beta1**updates))


def lamb_directions(buckets: Sequence[Bucket], config: OptimizationConfig, updates: int) -> list[Tensor]:
    """The direction of each bucket's step before its scaling: Adam's, and the weight decay of matrices."""
    directions = []
    for bucket in buckets:
        direction = bucket.first_moment.div(_moments(bucket, config, updates)).div_(1 - config.beta1**updates)
        if not bucket.is_replicated:
            direction.add_(bucket.master, alpha=config.weight_decay)
        directions.append(direction)
    return directions


def lamb_update(
    buckets: Sequence[Bucket], directions: Sequence[Tensor], rate: float, dp: Replicas, tp: Channel
) -> None:
    """LAMB (You et al. 2020): step along a direction by the matrix's own norm over the direction's.

    The norms of all matrices of a rank are summed in one all-reduce over dp and one over tp. Norm layers, and
    matrices of which a norm is 0, take the direction as it is.
    """
    names = list(dict.fromkeys(spec.name for b in buckets if not b.is_replicated for spec, _ in b.members))
    place = {name: number for number, name in enumerate(names)}
    squares = torch.zeros(2, len(names), dtype=torch.float64, device=directions[0].device)
    for bucket, direction in zip(buckets, directions, strict=True):
        for piece in bucket.slices if not bucket.is_replicated else ():
            for row, values in enumerate((bucket.master, direction)):
                norm = torch.linalg.vector_norm(values[piece.start : piece.end], dtype=torch.float64)
                squares[row, place[piece.spec.name]] += norm.square()
    if dp.size > 1:
        dp.all_reduce(squares)
    if tp.size > 1:
        tp.all_reduce(squares)
    weight, step = squares.sqrt()
    ratios = torch.where((weight > 0) & (step > 0), weight / step, torch.ones_like(weight)).to(directions[0].dtype)
    for bucket, direction in zip(buckets, directions, strict=True):
        for piece in bucket.slices if not bucket.is_replicated else ():
            direction[piece.start : piece.end].mul_(ratios[place[piece.spec.name]])
        bucket.master.add_(direction, alpha=-rate)


def _moments(bucket: Bucket, config: OptimizationConfig, updates: int) -> Tensor:
    """Take the gradients into both moments; the denominator of Adam's step, its bias corrected."""
    gradient = bucket.gradient_shard
    bucket.first_moment.lerp_(gradient, 1 - config.beta1)
    bucket.second_moment.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
    correction = math.sqrt(1 - config.beta2**updates)
    return bucket.second_moment.sqrt().div_(correction).add_(config.epsilon)
