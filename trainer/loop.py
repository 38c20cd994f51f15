"""One rank's training: builds the parts, and runs steps, evaluations and checkpoints in order."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..profiler.recorder import AnyRecorder
from .building import build_engine
from .checkpoints.checkpointer import Checkpointer
from .comm import Traffic
from .config import TrainConfig
from .data.batches import Split
from .data.loader import Loader
from .data.opening import open_batches
from .faults.kinds import parse_fault
from .faults.switches import FaultSwitches
from .finite import NotFiniteError, not_finite
from .flops import peak_flops, utilization
from .optim import learning_rate
from .parting import hang_up
from .pipeline import step_schedule
from .probe import Probe
from .readback import Readback
from .rescue import Rescue
from .schedule import as_rows
from .skipping import batch_of
from .stopping import DEVICE_LAG, StopRequest

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
RESCUE_S = 30.0
"""How long a rank that has saved the last good state stays, so that the others can save it too."""
LINGER_S = 2.0
"""How much longer stays who has only lost a peer: the rank with the number that is not finite is to end first."""


@dataclass(slots=True)
class TrainResult:
    """What a rank knows at the end. Lists start at ``start_step``; ``traffic`` is of the training steps alone.

    ``stopped``: it was asked to save and stop before its last step.
    """

    start_step: int
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    eval_losses: dict[int, float] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    stopped: bool = False


class Trainer:
    """Everything that one rank trains with. The process group must have been initialised."""

    def __init__(
        self, config: TrainConfig, recorder: AnyRecorder, device: torch.device, progress: Progress | None = None
    ) -> None:
        config.validate(dist.get_world_size())
        self._config, self._recorder, self._device, self._progress = config, recorder, device, progress
        rank = dist.get_rank()
        recorder.topology(config.topology(), rank)
        recorder.configuration(_plain(asdict(config)))
        faults = [parse_fault(text) for text in config.fault]
        self._switches = FaultSwitches(faults, rank, recorder, attempt=config.attempt(os.environ))
        self._probe = Probe(recorder, self._switches)
        with self._probe.span("setup"):
            engine = build_engine(config, recorder, self._switches, self._probe, device)
            self.funnel, self.optimizer, self.pipeline = engine.funnel, engine.optimizer, engine.pipeline
            mesh, tp, self._mesh, self._world = engine.mesh, engine.tp, engine.mesh, engine.world
            self._hosts = engine.hosts
            if rank == 0:
                recorder.schedule(as_rows(step_schedule(config)))
            self._loader = Loader(config, mesh, tp, self._probe, open_batches(config, mesh, self._probe))
        self._checkpointer: Checkpointer | None = None
        if config.checkpoint.folder is not None:
            self._checkpointer = Checkpointer(config, mesh, self.optimizer, self._world, self._probe)
        self._readback = Readback(torch.cuda if device.type == "cuda" else None)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        self._peak = peak_flops(name, config.model.precision)
        self._start, self._logged_step, self._logged_ns = 0, 0, 0
        self._stop_request = StopRequest(lag=DEVICE_LAG if device.type == "cuda" else 0)
        self._rescue = Rescue(config.incarnation(os.environ), self._save_last_good, linger_s=LINGER_S)

    def run(self) -> TrainResult:
        """Train from where the newest checkpoint ends to the last step."""
        start = 0
        if self._checkpointer is not None:
            restored = self._checkpointer.begin()
            start = self._start = restored.step
            self._loader.go_on(batch_of(start, self._config.data.skip), restored.position)
            if start and self._progress is not None:
                self._progress(f"resumed at step {start}/{self._config.train.steps}")
        result = TrainResult(start)
        self.funnel.traffic.clear()
        self._logged_step, self._logged_ns = start, time.monotonic_ns()
        gc.collect()
        gc.freeze()
        if self._config.train.gc_every:
            gc.disable()
        try:
            for step in range(start, self._config.train.steps):
                with self._rescue.guard(lambda: self.optimizer.updates):
                    self._step(step, result)
                if step == start:
                    self._hosts.warn()
                if self._switches.active and self._switches.repeats(step):
                    self._step(step, result)
                self._report(result, until=self._stop_request.settled_by(step))
                if self._stop_request.is_due(step) and step + 1 < self._config.train.steps:
                    self._save_at_stop(step + 1, result)
                    result.stopped = True
                    break
        finally:
            self._loader.close()
            self._switches.close()
            gc.enable()
            gc.unfreeze()
        self._recorder.end_step()
        self._finish(result)
        if result.stopped and self._progress is not None:  # now all ranks have saved
            self._progress(f"stopped after step {step + 1}, as asked from outside")
        return result

    def _step(self, step: int, result: TrainResult) -> None:
        train = self._config.train
        self._recorder.step(step)
        self._switches.step(step)
        self._readback.begin()
        batch = self._loader.load(Split.TRAIN, batch_of(step, self._config.data.skip))
        metrics: list[Tensor] = []

        def update(loss: Tensor | None) -> None:
            metrics.append(self.optimizer.step(step, loss, is_asked=self._stop_request.is_seen(step + 1)))

        self.pipeline.train_step(batch, step, update)
        self._readback.push(step, metrics[0])
        self._report(result)
        if train.eval_every and (step + 1) % train.eval_every == 0:
            self._evaluate(step, result)
        every = self._config.checkpoint.every
        if self._checkpointer is not None and every and (step + 1) % every == 0:
            self._save(step + 1, result)
        if train.gc_every and (step + 1) % train.gc_every == 0:
            with self._probe.span("gc"):
                gc.collect(1)

    def _save_last_good(self, updates: int) -> None:
        """Save, and stay until all others have. They may be waiting for this rank: so it hangs up first.

        The checkpoints before stay: one whose very next loss is not finite is not to be the only one.
        """
        if self._checkpointer is not None and updates != self._start:
            try:
                self._checkpointer.save(updates, self._loader.position, prunes=False)
                hang_up()
                self._checkpointer.finish(required=True)
            except NotFiniteError as error:  # this state is no good one itself: then it counts for no rank
                log.warning("%s", error)
                hang_up()
            if not self._checkpointer.wait(updates, RESCUE_S):
                log.warning("The state after step %d is not saved: not all ranks could.", updates)

    def _save(self, updates: int, result: TrainResult) -> None:
        """Save what the last step has made, once its loss and gradient norm are known and finite."""
        assert self._checkpointer is not None
        self._report(result, wait=True)
        self._checkpointer.save(updates, self._loader.position)

    def _save_at_stop(self, updates: int, result: TrainResult) -> None:
        """Save, unless that has just been done; a write that fails is an error here, since training ends."""
        if self._checkpointer is not None:
            self._save(updates, result)
            self._checkpointer.finish(required=True)

    def _report(self, result: TrainResult, *, wait: bool = False, until: int | None = None) -> None:
        """Note the metrics that have arrived: on a CPU this step's, on a device perhaps an earlier one's."""
        train, model = self._config.train, self._config.model
        tokens = train.batch * model.sequence
        world, own_tokens = self._world.size, tokens // self._config.parallel.dp
        for done in self._readback.ready(wait=wait, until=until):
            step, (loss, norm, asked) = done.step, done.values
            self._stop_request.agree(step, asked)
            if not math.isfinite(loss) or not math.isfinite(norm):  # what all ranks know alike: they stop together
                raise not_finite(step, what="gradient norm" if math.isfinite(loss) else "loss", is_applied=True)
            result.losses.append(loss)
            result.grad_norms.append(norm)
            rate = learning_rate(train, step)
            mfu = utilization(model, tokens * 1e9 / done.duration_ns, world, self._peak)
            self._recorder.step_metrics(
                step, loss=loss, grad_norm=norm, tokens=tokens, rank_tokens=own_tokens, mfu=mfu, learning_rate=rate
            )
            if self._progress is not None and ((step + 1) % train.log_every == 0 or step + 1 == train.steps):
                now = time.monotonic_ns()
                speed = tokens * (step + 1 - self._logged_step) * 1e9 / (now - self._logged_ns)
                self._logged_step, self._logged_ns = step + 1, now
                mfu = utilization(model, speed, world, self._peak)
                self._progress(progress_line(step, train.steps, loss, speed, mfu, norm, rate))

    def _evaluate(self, step: int, result: TrainResult) -> None:
        """Mean loss over the same held-out batches every time."""
        train = self._config.train
        traffic = self.funnel.traffic
        self.funnel.traffic = {}
        with self._probe.span("eval"):
            total = torch.zeros(1, dtype=torch.float64, device=self._device)
            for number in range(train.eval_batches):
                part = self._evaluated(number)
                if part is not None:
                    total += part / train.eval_batches
            if self._world.size > 1:
                self._world.all_reduce(total)
            loss = float(total.item())
        if not math.isfinite(loss):  # which a device tells only now, of weights that are updated already
            raise not_finite(step, what="evaluation loss after the update", is_applied=True)
        self.funnel.traffic = traffic
        result.eval_losses[step] = loss
        self._recorder.step_metrics(step, eval_loss=loss)
        if self._progress is not None:
            self._progress(f"step {step + 1}/{train.steps}  eval loss {loss:.4f}")

    def _evaluated(self, number: int) -> Tensor | None:
        try:
            return self.pipeline.evaluate(self._loader.load(Split.EVAL, number))
        except NotFiniteError as error:  # by what the weights have just been updated with
            error.is_applied = True
            raise

    def _finish(self, result: TrainResult) -> None:
        for flat in self.optimizer.flats:
            flat.finish_gather()
        self._report(result, wait=True)
        if self._checkpointer is not None:
            self._checkpointer.finish()
        result.traffic = self.funnel.traffic
        if self._world.size > 1:  # rank 0 holds the rendezvous store: it stays until all have committed
            self.funnel.traffic = {}
            self._world.all_reduce(torch.zeros(1, device=self._device))
        self.funnel.close()


def progress_line(
    step: int, steps: int, loss: float, tokens_per_second: float, mfu: float | None, grad_norm: float, rate: float
) -> str:
    """One line of progress, for a terminal."""
    shown = "n/a" if mfu is None else f"{100 * mfu:.1f}%"
    return (
        f"step {step + 1}/{steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  MFU {shown}  "
        f"grad norm {grad_norm:.3f}  lr {rate:.2e}"
    )


def _plain(value: Any) -> Any:
    """Paths and enumerations as text, for JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (int, float, type(None))) else str(value)
