"""Runs the action list of a pipeline stage: receives are posted ahead, sends never block, compute waits for input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..profiler.box.box import ABSENT_I16, ABSENT_I32
from ..profiler.vocabulary import ActionKind
from .comm import Funnel
from .config import TrainConfig
from .dropout import Dropout
from .finite import not_finite
from .flat import FlatChunk
from .handle import Handle
from .links import Links
from .model import DTYPES, ModelChunk
from .probe import Probe
from .schedule import COMPUTE, Action, Schedule, evaluation_schedule, training_schedule
from .topology import Mesh

OptimizerStep = Callable[[Tensor | None], None]
"""Given this rank's part of the mean loss (None if it has none), update the weights' shards."""

RECEIVES = {ActionKind.FORWARD: ActionKind.RECV_FORWARD, ActionKind.BACKWARD: ActionKind.RECV_BACKWARD}


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
        dropout: Dropout,
    ) -> None:
        parallel, train, model = config.parallel, config.train, config.model
        self._funnel, self._chunks, self._flats, self._probe = funnel, chunks, flats, probe
        self._dropout, self._first_sequence = dropout, mesh.index("dp") * train.batch // parallel.dp
        self._links = Links(funnel, mesh)
        self._overlaps_p2p = parallel.overlap_p2p
        self._ahead = parallel.recv_ahead if parallel.overlap_p2p else 0
        stage = mesh.index("pp")
        sizes = (parallel.pp, parallel.chunks, train.microbatches)
        self._training = step_schedule(config)[stage]
        self._evaluation = evaluation_schedule(*sizes, parallel.schedule)[stage]
        self._last_microbatch = train.microbatches - 1
        self._rows = config.microbatch_sequences
        self._shape = (model.sequence // parallel.tp, self._rows, model.width)
        self._dtype = DTYPES[model.precision]
        # The mean over micro-batches and replicas; of the loss only one tensor-parallel rank's counts.
        self._loss_scale = 1.0 / (train.microbatches * parallel.dp)
        self._reports_loss = mesh.index("tp") == 0
        self._handlers: dict[ActionKind, Callable[[Action], None]] = {
            ActionKind.SEND_FORWARD: self._send,
            ActionKind.SEND_BACKWARD: self._send,
            ActionKind.RECV_FORWARD: self._posted_ahead,
            ActionKind.RECV_BACKWARD: self._posted_ahead,
            ActionKind.REDUCE_SCATTER: self._reduce,
            ActionKind.ALL_GATHER: lambda action: self._flats[action.chunk or 0].gather(),
            ActionKind.OPTIMIZER_STEP: lambda _: self._optimizer_step(self._loss),
        }
        self._sends: deque[Handle] = deque()
        self._receives: deque[tuple[int, Action]] = deque()
        self._reset(None, 0, training=True)

    def _reset(self, batch: Tensor | None, step: int, *, training: bool) -> None:
        self._batch, self._step, self._is_training = batch, step, training
        self._loss: Tensor | None = None
        self._incoming: dict[tuple[ActionKind, int | None, int | None], tuple[Tensor, Handle]] = {}
        self._outgoing: dict[tuple[ActionKind, int | None, int | None], Tensor] = {}
        self._saved: dict[tuple[int | None, int | None], tuple[Tensor | None, Tensor]] = {}

    def train_step(self, batch: Tensor | None, step: int, optimizer_step: OptimizerStep) -> None:
        """Run all actions of a step. ``batch`` is this replica's [sequences, sequence + 1] of tokens, on the first and

        the last stage; ``optimizer_step`` is called where the schedule has it.
        """
        self._reset(batch, step, training=True)
        self._optimizer_step = optimizer_step
        self._run(self._training)

    @torch.no_grad()
    def evaluate(self, batch: Tensor | None) -> Tensor | None:
        """This rank's part of the mean loss over a batch, without gradients; None on ranks that have none."""
        self._reset(batch, 0, training=False)
        self._run(self._evaluation)
        return self._loss

    def _run(self, actions: Sequence[Action]) -> None:
        receives = self._receives = deque(_receives(actions))
        uses = deque(action.chunk or 0 for action in actions if action.kind in COMPUTE)
        computed = 0
        for action in actions:
            while receives and receives[0][0] <= computed + self._ahead:
                self._post_receive(receives.popleft()[1])
            self._tag(action)
            if action.kind in COMPUTE:
                computed += 1
                self._compute(action, uses)
            else:
                self._handlers[action.kind](action)
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

    def _compute(self, action: Action, uses: deque[int]) -> None:
        """Run a forward or backward, its chunk's weights there; ``uses`` are the chunks of it and of those to come."""
        assert action.microbatch is not None
        chunk = uses.popleft()
        self._flats[chunk].acquire()
        if uses and uses[0] != chunk:
            self._flats[uses[0]].prefetch()
        first = self._first_sequence + action.microbatch * self._rows
        self._dropout.place(self._step, first, is_training=self._is_training)
        (self._forward if action.kind is ActionKind.FORWARD else self._backward)(action)
        if not uses or uses[0] != chunk:
            self._flats[chunk].release()

    def _reduce(self, action: Action) -> None:
        if not self._is_swapped(action):
            self._flats[action.chunk or 0].reduce()

    def _is_swapped(self, action: Action) -> bool:
        """Whether a fault puts off the reduction of what an action completes until the optimizer's step."""
        return action.microbatch in (None, self._last_microbatch) and self._funnel.switches.swaps_order()

    def _send(self, action: Action) -> None:
        if action.kind is ActionKind.SEND_FORWARD and self._funnel.switches.receives_first():
            self._await_reply(action)
        while self._sends and self._sends[0].is_done():
            self._sends.popleft().wait()
        handle = self._links.send(action.kind, self._outgoing.pop(action.key))
        if self._overlaps_p2p:
            self._sends.append(handle)
            return
        if self._receives:  # the other end may be sending too: it is in this receive that its message ends
            self._post_receive(self._receives.popleft()[1])
            self._tag(action)
        handle.wait()

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
        flat = self._flats[action.chunk]
        if (flat.zero > 1 or action.microbatch == self._last_microbatch) and not self._is_swapped(action):
            flat.arm()
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


def step_schedule(config: TrainConfig) -> Schedule:
    """The actions of one training step of a job, on all stages."""
    parallel = config.parallel
    return training_schedule(
        parallel.pp,
        parallel.chunks,
        config.train.microbatches,
        shards=parallel.dp > 1,
        order=parallel.schedule,
        zero=parallel.zero,
    )


def _receives(actions: Sequence[Action]) -> list[tuple[int, Action]]:
    """Every receive with the number of the compute action that it feeds."""
    result, computed = [], 0
    for action in actions:
        if action.kind in RECEIVES.values():
            result.append((computed, action))
        computed += action.kind in COMPUTE
    return result
