"""The channels of a pipeline stage to its neighbours, by what travels which way."""

from __future__ import annotations

from torch import Tensor

from ..profiler.vocabulary import ActionKind
from .comm import Funnel
from .handle import Handle
from .topology import Edge, EdgeKind, Mesh


class Links:
    """The channels to the neighbouring stages, by what is sent or received for which chunk."""

    def __init__(self, funnel: Funnel, mesh: Mesh) -> None:
        self._stage, self._stages = mesh.index("pp"), mesh.size("pp")
        self._mesh = mesh
        self._channels = {
            edge: funnel.channel(str(edge.kind), sorted((edge.source, edge.destination)), group)
            for edge, group in mesh.edges.items()
            if edge.kind is not EdgeKind.RING
        }

    def send(self, kind: ActionKind, tensor: Tensor) -> Handle:
        """Send an activation or its gradient to the stage that waits for it."""
        edge = self._edge(kind)
        return self._channels[edge].send(str(kind), tensor, edge.destination)

    def recv(self, kind: ActionKind, tensor: Tensor) -> Handle:
        """Receive an activation or its gradient into ``tensor``."""
        edge = self._edge(kind)
        return self._channels[edge].recv(str(kind), tensor, edge.source)

    def _edge(self, kind: ActionKind) -> Edge:
        goes_up = kind in (ActionKind.SEND_FORWARD, ActionKind.RECV_BACKWARD)
        is_forward = kind in (ActionKind.SEND_FORWARD, ActionKind.RECV_FORWARD)
        other = self._stage + (1 if goes_up else -1)
        wraps = not 0 <= other < self._stages
        peer = self._mesh.rank_of_stage(other % self._stages)
        if is_forward:
            edge_kind = EdgeKind.FORWARD_WRAP if wraps else EdgeKind.FORWARD
        else:
            edge_kind = EdgeKind.BACKWARD_WRAP if wraps else EdgeKind.BACKWARD
        if kind in (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD):
            return Edge(edge_kind, self._mesh.rank, peer)
        return Edge(edge_kind, peer, self._mesh.rank)
