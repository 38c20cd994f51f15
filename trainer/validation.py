"""Checks of a configuration against itself and against the number of processes: one sentence for each refusal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..profiler.errors import UsageError
from .sections import BY_RACK

if TYPE_CHECKING:
    from .config import TrainConfig

Problem = tuple[bool, str]


def check_config(config: TrainConfig, world_size: int) -> None:
    """Raise UsageError with the first problem found."""
    for checks in (_ranges, _mesh, _divisions, _others):
        for is_wrong, sentence in checks(config, world_size):
            if is_wrong:
                raise UsageError(sentence)


def _ranges(config: TrainConfig, _: int) -> Iterator[Problem]:
    model, parallel, train = config.model, config.parallel, config.train
    at_least: dict[int, dict[str, float]] = {
        1: {
            "model.layers": model.layers,
            "model.width": model.width,
            "model.heads": model.heads,
            "model.feed_forward": model.feed_forward,
            "model.vocabulary": model.vocabulary,
            "model.sequence": model.sequence,
            "model.window": 1 if model.window is None else model.window,
            "parallel.tp": parallel.tp,
            "parallel.pp": parallel.pp,
            "parallel.dp": parallel.dp,
            "parallel.chunks": parallel.chunks,
            "parallel.zero": parallel.zero,
            "parallel.stage_layers": min(parallel.stage_layers, default=1),
            "parallel.bucket_bytes": parallel.bucket_bytes,
            "parallel.timeout_s": parallel.timeout_s,
            "train.steps": train.steps,
            "train.batch": train.batch,
            "train.microbatches": train.microbatches,
            "train.log_every": train.log_every,
            "train.eval_batches": train.eval_batches,
            "data.limit_bytes": 1 if config.data.limit_bytes is None else config.data.limit_bytes,
            "checkpoint.keep": config.checkpoint.keep,
            "checkpoint.whole_every": config.checkpoint.whole_every,
        },
        0: {
            "model.init_std": model.init_std,
            "parallel.recv_ahead": parallel.recv_ahead,
            "data.prefetch": config.data.prefetch,
            "train.min_learning_rate": train.min_learning_rate,
            "train.weight_decay": train.weight_decay,
            "train.seed": train.seed,
            "train.warmup_steps": train.warmup_steps,
            "train.eval_every": train.eval_every,
            "train.clip_factor": train.clip_factor,
            "parallel.pod": 0 if isinstance(parallel.pod, str) else parallel.pod,
            "train.gc_every": train.gc_every,
            "checkpoint.every": config.checkpoint.every,
            "record.attempt": config.record.attempt or 0,
        },
    }
    for least, settings in at_least.items():
        for name, value in settings.items():
            yield not least <= value < math.inf, f"{name} is {value}, but it must be at least {least}: change it."
    yield train.seed >= 2**63, f"train.seed is {train.seed}, but it must be below 2**63: change it."
    above_zero = {
        "model.rotary_base": model.rotary_base,
        "train.learning_rate": train.learning_rate,
        "train.clip": train.clip,
        "train.epsilon": train.epsilon,
    }
    for name, number in above_zero.items():
        yield not 0 < number < math.inf, f"{name} is {number}, but it must be above 0, and finite: change it."
    for name, number in (("beta1", train.beta1), ("beta2", train.beta2)):
        yield not 0 <= number < 1, f"train.{name} is {number}, but it must lie in [0, 1): change it."
    dropout = model.dropout
    yield not 0 <= dropout < 1, f"model.dropout is {dropout}, but it must lie in [0, 1): change it."
    yield parallel.zero > 3, f"parallel.zero is {parallel.zero}, but there are stages 1, 2 and 3: choose one of them."
    share = config.data.eval_share
    yield not 0 <= share < 1, f"data.eval_share is {share}, but it must lie in [0, 1): change it."


def _mesh(config: TrainConfig, world_size: int) -> Iterator[Problem]:
    order = config.parallel.order
    yield (
        sorted(order) != ["dp", "pp", "tp"],
        f"parallel.order is {', '.join(order) or 'empty'}: name pp, dp and tp once each, the outermost first.",
    )
    topology = config.topology()
    product = " x ".join(f"{name} {size}" for name, size in topology.axes)
    yield (
        topology.world_size != world_size,
        f"{product} = {topology.world_size}, but {world_size} {_processes(world_size)} started: "
        f"start {topology.world_size} (--nproc, or torchrun's --nproc-per-node x --nnodes), or change the layout.",
    )


def _processes(count: int) -> str:
    return "process was" if count == 1 else "processes were"


def _divisions(config: TrainConfig, _: int) -> Iterator[Problem]:
    model, parallel, train = config.model, config.parallel, config.train
    stages = parallel.pp * parallel.chunks
    yield (
        parallel.chunks > 1 and parallel.pp == 1,
        f"parallel.chunks is {parallel.chunks}, but there is one pipeline stage: set chunks to 1, or pp above 1.",
    )
    yield (
        parallel.chunks > 1 and parallel.schedule == "gpipe",
        f"parallel.chunks is {parallel.chunks}, but gpipe has one on a stage: set chunks to 1, or schedule to 1f1b.",
    )
    yield (
        not parallel.overlap_p2p and parallel.chunks > 1,
        "parallel.overlap_p2p is off, with which interleaved chunks would wait for each other: set chunks to 1.",
    )
    yield (
        parallel.ring and train.recompute == "selective",
        "train.recompute is selective, which a ring cannot stop short of its messages: choose full, or ring off.",
    )
    yield (
        not isinstance(parallel.pod, str) and parallel.pod > 0 and parallel.dp % parallel.pod != 0,
        f"parallel.pod is {parallel.pod}, which does not divide dp {parallel.dp}: choose a divisor, host, rack, or 0.",
    )
    yield (
        parallel.pod == BY_RACK and parallel.racks is None,
        "parallel.pod is rack, but nothing says which host is in which: name a file of lines host,rack in "
        "parallel.racks, or set pod to host.",
    )
    layers = parallel.stage_layers
    yield (
        bool(layers) and (len(layers) != stages or sum(layers) != model.layers),
        f"parallel.stage_layers is {', '.join(map(str, layers))}: give pp {parallel.pp} x chunks {parallel.chunks} = "
        f"{stages} numbers that add up to model.layers, {model.layers}.",
    )
    yield (
        not layers and model.layers % stages != 0,
        f"{model.layers} layers cannot be cut into pp {parallel.pp} x chunks {parallel.chunks} = {stages} equal parts: "
        f"make model.layers a multiple of {stages}, or set parallel.stage_layers.",
    )
    yield (
        model.width % model.heads != 0 or model.width // model.heads % 2 != 0,
        f"A width of {model.width} does not give each of {model.heads} heads an even number of channels, which rotary "
        f"positions need: make model.width a multiple of {2 * model.heads}.",
    )
    for name, value in (("heads", model.heads), ("vocabulary", model.vocabulary), ("sequence", model.sequence)):
        yield (
            value % parallel.tp != 0,
            f"model.{name} is {value}, which tp {parallel.tp} does not divide: make it a multiple of {parallel.tp}.",
        )
    parts = parallel.dp * train.microbatches
    yield (
        train.batch % parts != 0,
        f"A batch of {train.batch} sequences cannot be cut into dp {parallel.dp} x {train.microbatches} micro-batches: "
        f"make train.batch a multiple of {parts}.",
    )
    yield (
        parallel.chunks > 1 and train.microbatches % parallel.pp != 0,
        f"Interleaved 1F1B needs micro-batches in groups of pp: train.microbatches is {train.microbatches}, "
        f"make it a multiple of {parallel.pp}.",
    )


def _others(config: TrainConfig, _: int) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    yield (
        checkpoint.every > 0 and checkpoint.folder is None,
        "checkpoint.every is set, but there is nowhere to write: set checkpoint.folder too.",
    )
    data = config.data
    yield (
        data.tokens is not None and (data.text, data.limit_bytes, data.tokenizer) != (None, None, "bytes"),
        "data.tokens is set, and a token file has its tokenizer: leave out data.text, data.tokenizer and "
        "data.limit_bytes, or make another with `megascope tokenize`.",
    )
    yield (
        config.data.tokens is None and config.data.tokenizer == "bytes" and config.model.vocabulary < 256,
        f"Bytes as tokens need a vocabulary of 256, but model.vocabulary is {config.model.vocabulary}: raise it.",
    )
    yield (
        config.data.tokenizer == "bpe" and config.model.vocabulary < 257,
        f"Byte-pair encoding needs more than 256 tokens, but model.vocabulary is {config.model.vocabulary}: raise it.",
    )
    from .faults.checks import check_faults  # noqa: PLC0415  (only a configuration with faults needs it)

    for sentence in check_faults(config):
        yield True, sentence
