"""A plain decoder and training loop in torch's own parts, written apart from the trainer to check it against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)

from megascope.trainer.config import TrainConfig
from megascope.trainer.data.batches import Batches, Split
from megascope.trainer.data.corpus import encode, read_text
from megascope.trainer.model import chunk_specs, initial_value
from megascope.trainer.optim import learning_rate


@dataclass
class PlainResult:
    """Loss and gradient norm of every step."""

    losses: list[float]
    grad_norms: list[float]


def plain_training(
    config: TrainConfig,
    dtype: torch.dtype,
    *,
    optimizer_of: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    clip_at: Callable[[Sequence[float]], float] | None = None,
) -> PlainResult:
    """Train with an optimizer of torch's kind and clip_grad_norm_, the whole batch at once, [batch, sequence, width].

    ``clip_at`` gives the norm to clip at from those of the steps before; None: the configured one.
    """
    train = config.train
    weights = {
        spec.name: initial_value(spec, train.seed).to(dtype).requires_grad_()
        for spec in chunk_specs(config.model, 0, 1)
    }
    matrices = [weight for weight in weights.values() if weight.dim() > 1]
    others = [weight for weight in weights.values() if weight.dim() == 1]
    optimizer = optimizer_of(
        [{"params": matrices, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
    )
    batches = Batches(encode(read_text(config.data), config.data, None), config)
    result = PlainResult([], [])
    for step in range(train.steps):
        rows = torch.from_numpy(batches.rows(Split.TRAIN, step, 0, train.batch))
        logits = forward(weights, rows[:, :-1], config)
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), clip_at(result.grad_norms) if clip_at else train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step)
        optimizer.step()
        optimizer.zero_grad()
        result.losses.append(loss.item())
        result.grad_norms.append(norm.item())
    return result


def forward(weights: dict[str, Tensor], tokens: Tensor, config: TrainConfig) -> Tensor:
    """Logits [batch, sequence, vocabulary]."""
    x = F.embedding(tokens, weights["embedding.weight"])
    for layer in range(config.model.layers):
        w = {name.removeprefix(f"layers.{layer}."): weight for name, weight in weights.items()}
        normed = norm(x, w, "norm")
        mixed = attention(normed, w, config)
        if config.model.parallel_block:
            x = x + mixed + feed(normed, w)
        else:
            x = x + mixed
            x = x + feed(norm(x, w, "feed_norm"), w)
    table = weights["embedding.weight" if config.model.tied else "head"]
    return norm(x, weights, "final_norm") @ table.T


def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return centred * scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def feed(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    inner = x @ w["feed.up"].T
    return (inner * 0.5 * (1 + torch.erf(inner / 2**0.5))) @ w["feed.down"].T


def attention(x: Tensor, w: dict[str, Tensor], config: TrainConfig) -> Tensor:
    """Scores, mask and softmax written out; rotary positions as complex numbers."""
    batch, sequence, width = x.shape
    heads = config.model.heads
    qkv = (x @ w["attention.qkv"].T).view(batch, sequence, heads, 3, width // heads).transpose(1, 2)
    query, key, value = turn(qkv[..., 0, :], config), turn(qkv[..., 1, :], config), qkv[..., 2, :]
    scores = query @ key.transpose(-1, -2) / (width // heads) ** 0.5
    place = torch.arange(sequence)
    hidden = place[None, :] > place[:, None]
    if config.model.window is not None:
        hidden = hidden | (place[:, None] - place[None, :] >= config.model.window)
    mixed: Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
    return mixed.transpose(1, 2).reshape(batch, sequence, width) @ w["attention.out"].T


def turn(x: Tensor, config: TrainConfig) -> Tensor:
    half = x.shape[-1] // 2
    frequency = config.model.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    result: Tensor = torch.cat([turned.real, turned.imag], -1)
    return result
