"""Causal self-attention on this rank's heads: rotary positions, and an optional sliding window."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

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


def windowed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention of [batch, heads, sequence, head_width], a block of ``window`` queries at a time, to the block's own

    keys and those of the block before: of all other keys no score is computed. ``mask``: [window, 2 x window].
    """
    batch, heads, sequence, width = query.shape
    window = len(mask)
    first = nn.functional.scaled_dot_product_attention(
        query[..., :window, :], key[..., :window, :], value[..., :window, :], is_causal=True
    )
    padding = (0, 0, 0, -sequence % window)
    queries, keys, values = (
        nn.functional.pad(x, padding).view(batch, heads, -1, window, width) for x in (query, key, value)
    )
    rest = nn.functional.scaled_dot_product_attention(
        queries[:, :, 1:].flatten(1, 2), _with_before(keys), _with_before(values), attn_mask=mask
    )
    return torch.cat((first, rest.reshape(batch, heads, -1, width)), dim=-2)[..., :sequence, :]


def _with_before(blocks: Tensor) -> Tensor:
    """[batch, heads, blocks, window, width] to [batch, heads x (blocks - 1), 2 x window, width]."""
    return torch.cat((blocks[:, :, :-1], blocks[:, :, 1:]), dim=-2).flatten(1, 2)


def attend(qkv: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None, heads: int, head_width: int) -> Tensor:
    """Projected [sequence, batch, 3 x heads x head_width] to mixed [sequence, batch, heads x head_width].

    ``mask``: [sequence, sequence], or that of `windowed`; causal where there is none.
    """
    sequence, batch, _ = qkv.shape
    query, key, value = qkv.view(sequence, batch, heads, 3, head_width).permute(3, 1, 2, 0, 4)
    query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
    if mask is not None and len(mask) < sequence:
        mixed = windowed(query, key, value, mask)
    else:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return mixed.permute(2, 0, 1, 3).reshape(sequence, batch, -1)


class Attention(nn.Module):
    """Attention of ``heads`` heads out of the model's, and its projections, which the layer multiplies with.

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
        self._attend: Callable[..., Tensor] = attend
        self.qkv = nn.Parameter(torch.empty(3 * heads * head_width, width, dtype=dtype, device=device))
        self.out = nn.Parameter(torch.empty(width, heads * head_width, dtype=dtype, device=device))

    def forward(self, qkv: Tensor) -> Tensor:
        """Projected [sequence, batch, 3 x heads x head width], the whole sequence, to [sequence, batch, heads x head

        width], which `out` projects.
        """
        sequence = len(qkv)
        cosine, sine = rotary_table(sequence, self.head_width, self.rotary_base, qkv.dtype, qkv.device)
        mask = None
        if self.window is not None and 2 * self.window < sequence:
            mask = window_mask(2 * self.window, self.window, qkv.device)[self.window :]
        elif self.window is not None and self.window < sequence:
            mask = window_mask(sequence, self.window, qkv.device)
        return self._attend(qkv, cosine, sine, mask, self.heads, self.head_width)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile what lies between the projections."""
        self._attend = torch.compile(attend, *arguments, **options)
