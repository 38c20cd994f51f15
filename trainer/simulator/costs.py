"""What work and transfers cost: a table of nanoseconds, given directly or derived from a model and a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Nanoseconds of a healthy rank without noise. An operation that costs 0 takes no time, but it is still recorded.

    ``forward_ns`` and ``backward_ns``: own compute of one micro-batch by virtual stage (chunk * stages + stage), one
    entry for all of them where they are alike. ``tp_ns``: transfer of one tensor-parallel collective; a compute action
    has ``tp_pairs`` all-gathers and as many reduce-scatters. ``p2p_*``: one activation between neighbouring stages,
    over the network or inside a host. ``reduce_scatter_ns`` and ``all_gather_ns``: one chunk's gradients and weights.
    ``norm_ns``: the all-reduce of the gradient norm over the world. ``*_bytes``: payload on one rank.
    ``*_latency_ns``: what of the cost of a transfer over the network is latency, whatever its bandwidth.
    """

    forward_ns: tuple[float, ...] = (10e6,)
    backward_ns: tuple[float, ...] = (20e6,)
    tp_pairs: int = 0
    tp_ns: float = 0.0
    tp_bytes: int = 0
    tp_latency_ns: float = 0.0
    p2p_network_ns: float = 0.0
    p2p_host_ns: float = 0.0
    p2p_bytes: int = 0
    p2p_latency_ns: float = 0.0
    reduce_scatter_ns: float = 0.0
    reduce_scatter_bytes: int = 0
    reduce_scatter_latency_ns: float = 0.0
    all_gather_ns: float = 0.0
    all_gather_bytes: int = 0
    all_gather_latency_ns: float = 0.0
    norm_ns: float = 0.0
    optimizer_ns: float = 0.0
    data_ns: float = 0.0
    gc_ns: float = 0.0
    gc_every_steps: int = 0
    checkpoint_ns: float = 0.0
    checkpoint_every_steps: int = 0
    tokens_per_step: int | None = None
    flops_per_step: float | None = None
    peak_flops: float | None = None

    def forward(self, virtual_stage: int) -> float:
        """Own compute of a forward."""
        return self.forward_ns[virtual_stage if len(self.forward_ns) > 1 else 0]

    def backward(self, virtual_stage: int) -> float:
        """Own compute of a backward."""
        return self.backward_ns[virtual_stage if len(self.backward_ns) > 1 else 0]

    def bytes_share(self, segment: str) -> float:
        """Share of a network transfer's time, 0 to 1, that less bandwidth stretches; of the norm's few bytes 0."""
        whole, latency = {
            "send_forward": (self.p2p_network_ns, self.p2p_latency_ns),
            "send_backward": (self.p2p_network_ns, self.p2p_latency_ns),
            "dp_reduce_scatter": (self.reduce_scatter_ns, self.reduce_scatter_latency_ns),
            "dp_all_gather": (self.all_gather_ns, self.all_gather_latency_ns),
            "tp_all_gather": (self.tp_ns, self.tp_latency_ns),
            "tp_reduce_scatter": (self.tp_ns, self.tp_latency_ns),
        }.get(segment, (0.0, 0.0))
        return 0.0 if whole <= 0 else max(0.0, 1.0 - latency / whole)
