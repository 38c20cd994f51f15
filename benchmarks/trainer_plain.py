"""The trainer's model in plain PyTorch: one process, or the same layout out of torch's own parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

from megascope.trainer.attention import rotary_table, rotate
from megascope.trainer.config import TrainConfig
from megascope.trainer.data.batches import Batches, Split
from megascope.trainer.data.corpus import encode, read_text
from megascope.trainer.model import chunk_specs, initial_value


class PlainAttention(nn.Module):
    """Causal self-attention on [batch, sequence, width]; works on as many heads as its projection gives it."""

    def __init__(self, width: int, heads: int, rotary_base: float) -> None:
        super().__init__()
        self.head_width, self.rotary_base = width // heads, rotary_base
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same; with sequence parallelism `qkv` gathers and `out` scatters."""
        projected = self.qkv(x)
        batch, sequence, rows = projected.shape
        heads = rows // (3 * self.head_width)
        query, key, value = projected.view(batch, sequence, heads, 3, self.head_width).permute(3, 0, 2, 1, 4)
        tables = rotary_table(sequence, self.head_width, self.rotary_base, query.dtype, query.device)
        mixed = F.scaled_dot_product_attention(rotate(query, *tables), rotate(key, *tables), value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return result


class PlainFeed(nn.Module):
    """Two projections with a GELU between."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same."""
        result: Tensor = self.down(F.gelu(self.up(x)))
        return result


class PlainLayer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        model = config.model
        self.norm, self.feed_norm = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.attention = PlainAttention(model.width, model.heads, model.rotary_base)
        self.feed = PlainFeed(model.width, model.width * model.feed_forward)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same."""
        x = x + self.attention(self.norm(x))
        result: Tensor = x + self.feed(self.feed_norm(x))
        return result


class PlainStage(nn.Module):
    """Layers of the decoder; the first stage embeds, the last one gives logits."""

    def __init__(self, config: TrainConfig, stage: int, stages: int) -> None:
        super().__init__()
        model, per_stage = config.model, config.model.layers // stages
        numbers = range(stage * per_stage, (stage + 1) * per_stage)
        self.embedding = nn.Embedding(model.vocabulary, model.width) if stage == 0 else None
        self.layers = nn.ModuleDict({str(number): PlainLayer(config) for number in numbers})
        is_last = stage == stages - 1
        self.final_norm = nn.LayerNorm(model.width) if is_last else None
        self.head = nn.Linear(model.width, model.vocabulary, bias=False) if is_last else None
        self._fill(config, stage, stages)

    @torch.no_grad()
    def _fill(self, config: TrainConfig, stage: int, stages: int) -> None:
        """The trainer's own initial values, by name."""
        parameters = dict(self.named_parameters())
        for spec in chunk_specs(config.model, stage, stages):
            name = spec.name if spec.name in parameters else f"{spec.name}.weight"
            parameters[name].copy_(initial_value(spec, config.train.seed))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [batch, sequence] or activations to activations, or to logits at the end."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.final_norm is not None and self.head is not None:
            logits: Tensor = self.head(self.final_norm(x))
            return logits
        return x


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of logits [batch, sequence, vocabulary]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_adamw(parameters: Iterable[nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """torch's AdamW as the trainer's: norms take no weight decay."""
    train, both = config.train, list(parameters)
    groups = [
        {"params": [p for p in both if p.dim() > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in both if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), eps=train.epsilon)


def open_batches(config: TrainConfig) -> Batches:
    """The trainer's own batches."""
    return Batches(encode(read_text(config.data), config.data, None), config)


def rows_of(batches: Batches, step: int, first: int, last: int) -> Tensor:
    """Sequences of a step's batch, [last - first, sequence + 1]."""
    return torch.from_numpy(batches.rows(Split.TRAIN, step, first, last))


def clip_(gradients: Sequence[Tensor], norm: Tensor, limit: float) -> None:
    """Scale gradients in place to a norm of at most ``limit``."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
