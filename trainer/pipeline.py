"""Runs the action list of a pipeline stage: receives are posted ahead, sends never block, compute waits for input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..profiler.box import ABSENT_I16, ABSENT_I32
from ..profiler.errors import MegascopeError
from ..profiler.vocabulary import ActionKind
from .comm import Funnel
from .config import TrainConfig
from .flat import FlatChunk
from .handle import Handle
from .model import DTYPES, ModelChunk
from .probe import Probe
from .schedule import COMPUTE, Action, evaluation_schedule, training_schedule
from .topology import Edge, EdgeKind, Mesh


class NotFiniteError(MegascopeError):
    """The loss is infinite or not a number."""


OptimizerStep = Callable[[Tensor | None], None]
"""Given this rank's part of the mean loss (None if it has none), update the weights' shards."""

RECEIVES = {ActionKind.FORWARD: ActionKind.RECV_FORWARD, ActionKind.BACKWARD: ActionKind.RECV_BACKWARD}


class Links:
    """The channels to the neighbouring stages, by what is sent or received for which chunk."""

    def __init__(self, funnel: Funnel, mesh: Mesh) -> None:
        self._stage, self._stages = mesh.index("pp"), mesh.size("pp")
        self._mesh = mesh
        self._channels = {
            edge: funnel.channel(str(edge.kind), sorted((edge.source, edge.destination)), group)
            for edge, group in mesh.edges.items()
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


class Pipeline:
    """One rank's stage: its chunks, their buckets, and the actions that it runs in every step."""

    def __init__(
        self,
        config: TrainConfig,
        mesh: Mesh,
        funnel: Funnel,
        chunks: Sequence[ModelChunk],
        flats: Sequence[FlatChunk],
        probe: Probe,
    ) -> None:
        parallel, train, model = config.parallel, config.train, config.model
        self._funnel, self._chunks, self._flats, self._probe = funnel, chunks, flats, probe
        self._links = Links(funnel, mesh)
        self._ahead = parallel.recv_ahead
        stage = mesh.index("pp")
        sizes = (parallel.pp, parallel.chunks, train.microbatches)
        self._training = training_schedule(*sizes, shards=parallel.dp > 1)[stage]
        self._evaluation = evaluation_schedule(*sizes)[stage]
        self._last_microbatch = train.microbatches - 1
        self._rows = config.microbatch_sequences
        self._shape = (model.sequence // parallel.tp, self._rows, model.width)
        self._dtype = DTYPES[model.precision]
        # The mean over micro-batches and replicas; of the loss only one tensor-parallel rank's counts.
        self._loss_scale = 1.0 / (train.microbatches * parallel.dp)
        self._reports_loss = mesh.index("tp") == 0
        self._handlers: dict[ActionKind, Callable[[Action], None]] = {
            ActionKind.FORWARD: self._forward,
            ActionKind.BACKWARD: self._backward,
            ActionKind.SEND_FORWARD: self._send,
            ActionKind.SEND_BACKWARD: self._send,
            ActionKind.RECV_FORWARD: self._posted_ahead,
            ActionKind.RECV_BACKWARD: self._posted_ahead,
            ActionKind.REDUCE_SCATTER: self._reduce,
            ActionKind.ALL_GATHER: lambda action: self._flats[action.chunk or 0].gather(),
            ActionKind.OPTIMIZER_STEP: lambda _: self._optimizer_step(self._loss),
        }
        self._sends: deque[Handle] = deque()
        self._reset(None, training=True)

    def _reset(self, batch: Tensor | None, *, training: bool) -> None:
        self._batch, self._is_training = batch, training
        self._loss: Tensor | None = None
        self._incoming: dict[tuple[ActionKind, int | None, int | None], tuple[Tensor, Handle]] = {}
        self._outgoing: dict[tuple[ActionKind, int | None, int | None], Tensor] = {}
        self._saved: dict[tuple[int | None, int | None], tuple[Tensor | None, Tensor]] = {}

    def train_step(self, batch: Tensor | None, optimizer_step: OptimizerStep) -> None:
        """Run all actions of a step. ``batch`` is this replica's [sequences, sequence + 1] of tokens, on the first and

        the last stage; ``optimizer_step`` is called where the schedule has it.
        """
        self._reset(batch, training=True)
        self._optimizer_step = optimizer_step
        self._run(self._training)

    @torch.no_grad()
    def evaluate(self, batch: Tensor | None) -> Tensor | None:
        """This rank's part of the mean loss over a batch, without gradients; None on ranks that have none."""
        self._reset(batch, training=False)
        self._run(self._evaluation)
        return self._loss

    def _run(self, actions: Sequence[Action]) -> None:
        receives = deque(_receives(actions))
        computed = 0
        for action in actions:
            while receives and receives[0][0] <= computed + self._ahead:
                self._post_receive(receives.popleft()[1])
            self._tag(action)
            self._handlers[action.kind](action)
            computed += action.kind in COMPUTE
        self._funnel.microbatch, self._funnel.chunk = ABSENT_I32, ABSENT_I16
        while self._sends:
            self._sends.popleft().wait()

    def _tag(self, action: Action) -> None:
        funnel = self._funnel
        funnel.microbatch = ABSENT_I32 if action.microbatch is None else action.microbatch
        funnel.chunk = ABSENT_I16 if action.chunk is None else action.chunk

    def _post_receive(self, action: Action) -> None:
        self._tag(action)
        tensor = torch.empty(self._shape, dtype=self._dtype, device=self._funnel.device)
        self._incoming[action.key] = tensor, self._links.recv(action.kind, tensor)

    def _posted_ahead(self, action: Action) -> None:
        assert action.key in self._incoming

    def _receive(self, action: Action) -> Tensor | None:
        """What the receive for a compute action brought, once it is there; None where the action needs none."""
        entry = self._incoming.pop((RECEIVES[action.kind], action.chunk, action.microbatch), None)
        if entry is None:
            return None
        tensor, handle = entry
        handle.wait()
        return tensor

    def _reduce(self, action: Action) -> None:
        if not self._funnel.switches.swaps_order():
            self._flats[action.chunk or 0].reduce()

    def _send(self, action: Action) -> None:
        if action.kind is ActionKind.SEND_FORWARD and self._funnel.switches.receives_first():
            self._await_reply(action)
        while self._sends and self._sends[0].is_done():
            self._sends.popleft().wait()
        self._sends.append(self._links.send(action.kind, self._outgoing.pop(action.key)))

    def _await_reply(self, action: Action) -> None:
        """Wait for the gradient of what is not sent yet: the order in which two stages wait for each other for ever."""
        reply = Action(ActionKind.RECV_BACKWARD, action.chunk, action.microbatch)
        if reply.key not in self._incoming:
            self._post_receive(reply)
        self._incoming[reply.key][1].wait()

    def _forward(self, action: Action) -> None:
        assert action.chunk is not None
        assert action.microbatch is not None
        chunk = self._chunks[action.chunk]
        self._flats[action.chunk].finish_gather()
        received = self._receive(action)
        if received is not None and self._is_training:
            received.requires_grad_()
        inputs = received if received is not None else self._tokens(action.microbatch)[:, :-1].t()
        name, loss_name = ("forward", "loss") if self._is_training else ("eval_forward", "eval_loss")
        with self._probe.span(name, action.microbatch, action.chunk):
            output = chunk(inputs)
            if chunk.is_last:
                with self._probe.span(loss_name, action.microbatch, action.chunk):
                    output = chunk.loss(output, self._tokens(action.microbatch)[:, 1:].t())
        if chunk.is_last:
            self._add_loss(output.detach(), action.microbatch)
        else:
            self._outgoing[ActionKind.SEND_FORWARD, action.chunk, action.microbatch] = output.detach()
        if self._is_training:
            self._saved[action.chunk, action.microbatch] = received, output

    def _backward(self, action: Action) -> None:
        assert action.chunk is not None
        assert action.microbatch is not None
        received, output = self._saved.pop((action.chunk, action.microbatch))
        gradient = self._receive(action)
        if gradient is None:
            gradient = torch.full_like(output, self._loss_scale)
        if action.microbatch == self._last_microbatch and not self._funnel.switches.swaps_order():
            self._flats[action.chunk].arm()
        with self._probe.span("backward", action.microbatch, action.chunk):
            torch.autograd.backward(output, gradient)
        if received is not None:
            assert received.grad is not None
            self._outgoing[ActionKind.SEND_BACKWARD, action.chunk, action.microbatch] = received.grad

    def _tokens(self, microbatch: int) -> Tensor:
        assert self._batch is not None
        return self._batch[microbatch * self._rows : (microbatch + 1) * self._rows]

    def _add_loss(self, loss: Tensor, microbatch: int) -> None:
        if self._funnel.switches.poisons():
            loss = loss * torch.nan
        if loss.device.type == "cpu" and not bool(loss.isfinite()):  # on a device to look would be to wait for it
            raise not_finite(None, microbatch)
        if self._reports_loss:
            part = loss.double() * self._loss_scale
            self._loss = part if self._loss is None else self._loss + part


def not_finite(step: int | None = None, microbatch: int | None = None) -> MegascopeError:
    """The error of a loss that is infinite or not a number: weights that are updated with it are lost."""
    where = f"of step {step}" if step is not None else f"of micro-batch {microbatch} on this rank"
    return NotFiniteError(
        f"The loss {where} is not finite (NaN or infinite): go back to an earlier checkpoint, and lower "
        "train.learning_rate or look at the data of that step."
    )


def _receives(actions: Sequence[Action]) -> list[tuple[int, Action]]:
    """Every receive with the number of the compute action that it feeds."""
    result, computed = [], 0
    for action in actions:
        if action.kind in RECEIVES.values():
            result.append((computed, action))
        computed += action.kind in COMPUTE
    return result
