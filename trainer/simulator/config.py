"""Settings of a simulation: a model and a cluster, from a TOML file and flags, and the costs that follow from them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Toml
from rich.console import Console

from ...profiler.errors import UsageError
from ...profiler.topology import Topology
from ..config import ModelConfig, Precision, Whole
from ..flops import flops_per_token
from .costs import Costs
from .grid import Grid

ORDER = ("pp", "dp", "tp")
"""Axes from the outermost to the innermost, whose ranks are neighbours; other axes stand between dp and tp."""

BYTES = {Precision.BF16: 2, Precision.FP32: 4, Precision.FP64: 8}
STATE_BYTES = 28
"""Memory traffic of Adam for one parameter: gradient, weight and both moments in float32, read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """The decoder, as far as costs depend on it; by default the 175-billion-parameter one of published large runs."""

    layers: Whole = 96
    "Decoder layers."
    width: Whole = 12288
    "Width of the residual stream."
    feed_forward: Whole = 4
    "Inner width of the feed-forward part, in multiples of the width."
    vocabulary: Whole = 51200
    "Tokens in the vocabulary."
    sequence: Whole = 2048
    "Tokens in a sequence."
    parallel_block: bool = False
    "Compute attention and feed-forward from the same input, with half the tensor-parallel communication."
    window: Whole | None = None
    "Sliding attention window in tokens; all earlier tokens if absent."
    precision: Precision = Precision.BF16
    "Number format of parameters and activations."

    def flops_per_token(self) -> float:
        """Training FLOPs of one token, as the trainer counts them."""
        model = ModelConfig(
            layers=self.layers, width=self.width, feed_forward=self.feed_forward, vocabulary=self.vocabulary,
            sequence=self.sequence, window=self.window,
        )  # fmt: skip
        return flops_per_token(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The machines. Bandwidths are of one GPU and one direction; latencies of one message."""

    gpus_per_host: Whole = 8
    "GPUs of a host, which NVLink joins."
    peak_tflops: float = 989.0
    "Dense peak of a GPU at the model's precision, TFLOP/s."
    efficiency: float = 0.6
    "Share of the peak that compute reaches while it runs."
    nvlink_gbytes: float = 450.0
    "NVLink bandwidth, 10^9 bytes a second."
    nvlink_latency_us: float = 3.0
    "NVLink latency, microseconds."
    network_gbits: float = 400.0
    "Network bandwidth, 10^9 bits a second."
    network_latency_us: float = 10.0
    "Network latency, microseconds."
    memory_gbytes: float = 3350.0
    "Memory bandwidth, 10^9 bytes a second."
    data_ms: float = 2.0
    "What loading a step's data takes on the host, milliseconds."
    gc_ms: float = 0.0
    "What a planned garbage collection takes, milliseconds."
    gc_every_steps: Whole = 0
    "Steps between planned garbage collections; 0 for none."
    checkpoint_ms: float = 0.0
    "What a checkpoint stops a step for, milliseconds."
    checkpoint_every_steps: Whole = 0
    "Steps between checkpoints; 0 for none."


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """What costs are derived from."""

    model: SimulatedModel = field(default_factory=SimulatedModel)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)


def load_simulation(path: Path | None, overrides: Sequence[str] = ()) -> SimulationConfig:
    """Read a TOML file (none: the defaults) and flags such as ``--model.layers 48``, which win over it.

    Raises UsageError for a file that is missing or is not TOML, an unknown key or flag, and a value of the wrong type.
    """
    if path is not None and not path.is_file():
        raise UsageError(f"There is no configuration file {path}. Give the path of a TOML file.")
    where = f"the configuration {path} and its flags" if path is not None else "the flags of the simulation"
    try:
        if path is not None:
            tomllib.loads(path.read_text(encoding="utf-8"))
        config = _settings_app(path)(list(overrides), exit_on_error=False, print_error=False)
    except (CycloptsError, OSError, ValueError) as error:
        raise UsageError(f"Cannot read {where}: {' '.join(str(error).split())}") from error
    assert isinstance(config, SimulationConfig)
    _check(config)
    return config


def print_settings(console: Console | None = None) -> None:
    """Show every setting with its type, meaning and default."""
    _settings_app(None).help_print([], console=console or Console())


def _settings_app(path: Path | None) -> App:
    app = App(
        name="megascope simulate STORE",
        help="Settings: flags as shown; in a file for --config, keys such as `layers` in a section such as `[model]`.",
        config=Toml(path, must_exist=True) if path is not None else None,
        result_action="return_value",
        help_flags=[],
        version_flags=[],
    )

    @app.default
    def run(config: Annotated[SimulationConfig | None, Parameter(name="*")] = None) -> SimulationConfig:
        return config or SimulationConfig()

    return app


def _check(config: SimulationConfig) -> None:
    cluster, model = config.cluster, config.model
    above_zero = ("gpus_per_host", "peak_tflops", "efficiency", "nvlink_gbytes", "network_gbits", "memory_gbytes")
    for name in above_zero:
        value = getattr(cluster, name)
        if not 0 < value < math.inf:
            raise UsageError(f"cluster.{name} is {value}, but it must be above 0, and finite: change it.")
    for name in set(type(cluster).__slots__) - set(above_zero):
        if not 0 <= getattr(cluster, name) < math.inf:
            raise UsageError(f"cluster.{name} is {getattr(cluster, name)}, but it must be at least 0: change it.")
    for name in ("layers", "width", "feed_forward", "vocabulary", "sequence"):
        if getattr(model, name) < 1:
            raise UsageError(f"model.{name} is {getattr(model, name)}, but it must be at least 1: change it.")


def parse_layout(text: str) -> dict[str, int]:
    """``"tp=8,pp=8,dp=192"`` to axis and size, the outermost first: pp, dp, other axes as they are given, tp.

    Raises UsageError for anything else.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals or not size.isdecimal() or name in sizes:
            raise UsageError(f"The layout {text!r} has {part!r}: give axes and sizes, each once, as tp=8,pp=8,dp=192.")
        sizes[name] = int(size)
    inner = [name for name in sizes if name not in ORDER]
    order = [name for name in ("pp", "dp", *inner, "tp") if name in sizes]
    return {name: sizes[name] for name in order}


def costs_of(
    config: SimulationConfig,
    layout: Mapping[str, int],
    *,
    microbatches: int,
    chunks: int = 1,
    sequences: int = 1,
) -> Costs:
    """Costs of a job; ``sequences`` are those of one micro-batch.

    Compute: FLOPs (2 for each matrix parameter and token, 4 S D for attention, Chowdhery et al. 2022, appendix B) over
    peak x efficiency, a backward twice a forward; the last virtual stage also computes the logits. Transfers: latency +
    bytes over bandwidth, of rings (n - 1) / n of the bytes. Data parallelism reduces float32 gradients.
    Raises UsageError where the layers cannot be cut into equal stages.
    """
    model, cluster = config.model, config.cluster
    grid = Grid.of(Topology.from_mapping(layout), cluster.gpus_per_host)
    stages = grid.stages * chunks
    if model.layers % stages:
        raise UsageError(
            f"{model.layers} layers cannot be cut into pp {grid.stages} x chunks {chunks} = {stages} equal parts: "
            f"give --model.layers a multiple of {stages}."
        )
    tokens, width = sequences * model.sequence, grid.width
    per_layer = (4 + 2 * model.feed_forward) * model.width**2
    layers = model.layers // stages
    attended = model.sequence if model.window is None else min(model.window, model.sequence)
    flops = tokens * layers * (2 * per_layer + 4 * attended * model.width) / width
    logits = tokens * 2 * model.vocabulary * model.width / width
    rate = cluster.peak_tflops * 1e12 * cluster.efficiency / 1e9  # FLOPs in a nanosecond
    forward = [flops / rate] * (stages - 1) + [(flops + logits) / rate]
    size = BYTES[model.precision]
    activation = tokens * model.width * size
    weights = layers * per_layer // width
    network, nvlink = _network(cluster), _nvlink(cluster)
    tp = nvlink if not grid.leaves_host(grid.tp_groups()).any() else network
    dp = nvlink if not grid.leaves_host(grid.dp_groups()).any() else network
    return Costs(
        forward_ns=tuple(forward),
        backward_ns=tuple(2 * one for one in forward),
        tp_pairs=layers if model.parallel_block else 2 * layers,
        tp_ns=tp.ring_ns(activation, width),
        tp_bytes=activation,
        tp_latency_ns=tp.tree_ns(width),
        p2p_network_ns=network.message_ns(activation // width),
        p2p_host_ns=nvlink.message_ns(activation // width),
        p2p_bytes=activation // width,
        p2p_latency_ns=network.latency_ns,
        reduce_scatter_ns=dp.ring_ns(4 * weights, grid.dp_size),
        reduce_scatter_bytes=4 * weights,
        reduce_scatter_latency_ns=dp.tree_ns(grid.dp_size),
        all_gather_ns=dp.ring_ns(size * weights, grid.dp_size),
        all_gather_bytes=size * weights,
        all_gather_latency_ns=dp.tree_ns(grid.dp_size),
        norm_ns=2 * (network if grid.hosts > 1 else nvlink).tree_ns(grid.rank.size),
        optimizer_ns=STATE_BYTES * weights * chunks / grid.dp_size / cluster.memory_gbytes,
        data_ns=cluster.data_ms * 1e6,
        gc_ns=cluster.gc_ms * 1e6,
        gc_every_steps=cluster.gc_every_steps,
        checkpoint_ns=cluster.checkpoint_ms * 1e6,
        checkpoint_every_steps=cluster.checkpoint_every_steps,
        tokens_per_step=tokens * microbatches * grid.replicas,
        flops_per_step=model.flops_per_token() * tokens * microbatches * grid.replicas,
        peak_flops=cluster.peak_tflops * 1e12,
    )


@dataclass(frozen=True, slots=True)
class _Wire:
    """A kind of link: latency in ns, and bytes in a nanosecond."""

    latency_ns: float
    bytes_per_ns: float

    def message_ns(self, size_bytes: float) -> float:
        """One message."""
        return self.latency_ns + size_bytes / self.bytes_per_ns

    def ring_ns(self, size_bytes: float, members: int) -> float:
        """An all-gather or a reduce-scatter of so many bytes in all."""
        if members == 1:
            return 0.0
        return self.tree_ns(members) + size_bytes * (members - 1) / members / self.bytes_per_ns

    def tree_ns(self, members: int) -> float:
        """Latency to reach all members, doubling them each time."""
        return self.latency_ns * math.ceil(math.log2(members)) if members > 1 else 0.0


def _network(cluster: ClusterConfig) -> _Wire:
    return _Wire(cluster.network_latency_us * 1e3, cluster.network_gbits / 8)


def _nvlink(cluster: ClusterConfig) -> _Wire:
    return _Wire(cluster.nvlink_latency_us * 1e3, cluster.nvlink_gbytes)
