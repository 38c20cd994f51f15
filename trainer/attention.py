"""Causal self-attention on this rank's heads: rotary positions, and an optional sliding window."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn


@lru_cache(maxsize=32)
def rotary_table(
    sequence: int, head_width: int, base: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine, [sequence, head_width] each, of the rotary position embedding (Su et al. 2021, RoFormer).

    Position p turns the pair (i, i + head_width / 2) by the angle p * base ** (-2 i / head_width).
    """
    pair = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    angle = torch.outer(torch.arange(sequence, dtype=torch.float64), base**-pair).repeat(1, 2)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


@lru_cache(maxsize=32)
def window_mask(sequence: int, window: int, device: torch.device) -> Tensor:
    """[sequence, sequence], True where the row's position sees the column's: itself and the window - 1 before it."""
    position = torch.arange(sequence, device=device)
    distance = position.unsqueeze(1) - position.unsqueeze(0)
    return (distance >= 0) & (distance < window)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn [..., sequence, head_width] by the angles of its positions."""
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class Attention(nn.Module):
    """Attention of ``heads`` heads out of the model's; the output is a partial sum over the tensor-parallel group.

    The rows of the input projection are ordered head, then query/key/value, then channel: a contiguous part of
    them is a set of whole heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        window: int | None,
        rotary_base: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.heads, self.head_width, self.window, self.rotary_base = heads, head_width, window, rotary_base
        self.qkv = nn.Parameter(torch.empty(3 * heads * head_width, width, dtype=dtype, device=device))
        self.out = nn.Parameter(torch.empty(width, heads * head_width, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """[sequence, batch, width], the whole sequence, to a partial sum of the same shape."""
        sequence, batch, _ = x.shape
        qkv = nn.functional.linear(x, self.qkv).view(sequence, batch, self.heads, 3, self.head_width)
        query, key, value = qkv.permute(3, 1, 2, 0, 4)
        cosine, sine = rotary_table(sequence, self.head_width, self.rotary_base, x.dtype, x.device)
        mask = None
        if self.window is not None and self.window < sequence:
            mask = window_mask(sequence, self.window, x.device)
        mixed = nn.functional.scaled_dot_product_attention(
            rotate(query, cosine, sine), rotate(key, cosine, sine), value, attn_mask=mask, is_causal=mask is None
        )
        return nn.functional.linear(mixed.permute(2, 0, 1, 3).reshape(sequence, batch, -1), self.out)
