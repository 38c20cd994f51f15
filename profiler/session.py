"""The public API of recording: init, segment, begin, end, step, timed, shutdown; all of it safe when off."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .agent_process import HostAgent, serve_fallback
from .automatic.automatic import Automatic, AutomaticSpans, choose
from .automatic.data import TimedLoader
from .box.box import ABSENT_I16, ABSENT_I32
from .box.hot_path import OK
from .box.ring_writer import ABORTED
from .cadence import chosen as chosen_cadence
from .clock_exchange import join_exchange
from .flight_recorder import DumpOnRequest
from .for_dumps import answer_requests, leave_topology
from .identity import identify, next_attempt_in
from .in_compiled_code import no_begin, no_end, no_segment
from .null import NullRecorder
from .opening import RecorderSettings, attempt_folder, default_spool, open_recorder
from .recorder import Recorder
from .stack_signal import StackOnSignal
from .store_address import store_address
from .topology import Topology
from .vocabulary import SegmentKind

log = logging.getLogger(__name__)

STORE_VARIABLE = "MEGASCOPE_STORE"
OFF_VARIABLE = "MEGASCOPE_OFF"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_recorder: Recorder | NullRecorder = NullRecorder()
_automatic: AutomaticSpans | None = None
_agent: HostAgent | None = None
_dumps: DumpOnRequest | None = None
_stacks: StackOnSignal | None = None
_open_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def init(
    *,
    store: str | Path | None = None,
    run: str | None = None,
    attempt: int | None = None,
    topology: Topology | Mapping[str, int] | None = None,
    spool: str | Path | None = None,
    agent: bool = True,
    enabled: bool | None = None,
    configuration: Mapping[str, Any] | None = None,
    automatic: bool | str | Iterable[str] | None = None,
    sample: int | None = None,
    shadow_every: int | None = None,
) -> Recorder | NullRecorder:
    """Start recording in this process, before or after ``init_process_group``.

    ``store`` is the folder that the agent writes (``$MEGASCOPE_STORE``, else ``./megascope-store``); ``topology`` the
    mesh, axes from the outermost (default: all ranks on one dp axis); ``agent=False`` where somebody else runs
    ``megascope collect``. ``MEGASCOPE_OFF=1`` or ``enabled=False`` makes everything a no-op. A second call returns the
    recorder that is there.

    ``automatic`` chooses what is recorded without a word in the code (`Automatic`): all by default, or as
    ``$MEGASCOPE_AUTOMATIC`` says: names such as "gc,collectives", "none", or "-gc" for all but one. UsageError for an
    argument that makes no sense; what makes none in the environment is warned of, and the default taken.

    Spans are timed in every ``sample``-th step (``$MEGASCOPE_SAMPLE``, else all), and in none of one step in
    ``shadow_every`` (``$MEGASCOPE_SHADOW``, else 20; 0: never), to measure what recording costs; what is in flight is
    kept always, and all ranks choose the same steps.
    """
    global _agent  # noqa: PLW0603  (one agent a host, and local rank 0 looks after it)
    if _recorder.enabled:
        return _recorder
    if enabled is None:
        enabled = os.environ.get(OFF_VARIABLE, "0") in {"", "0"}
    if not enabled:
        return _recorder
    chosen = choose(automatic)
    target = store_address(store or os.environ.get(STORE_VARIABLE) or "megascope-store")
    folder = Path(spool) if spool is not None else default_spool(target)
    who = identify(run, attempt, next_attempt=next_attempt_in(target, folder))
    settings = RecorderSettings(
        run=who.run,
        attempt=who.attempt,
        rank=who.rank,
        world_size=who.world_size,
        local_rank=who.local_rank,
        local_world_size=who.local_world_size,
        spool=folder,
        cadence=chosen_cadence(who.run, sample, shadow_every),
    )
    recorder = open_recorder(settings)
    mesh = topology if isinstance(topology, Topology) else Topology.from_mapping(topology or {"dp": who.world_size})
    fits = mesh.world_size == who.world_size
    if fits:
        recorder.topology(mesh, who.rank)
        leave_topology(recorder, settings, mesh)
    else:
        log.warning("The topology %s has %d ranks, but the job has %d: it is not recorded.", dict(mesh.axes),
                    mesh.world_size, who.world_size)  # fmt: skip
    if configuration:
        recorder.configuration(configuration)
    install(recorder, chosen, mesh if fits else None)
    answer_dump_requests(recorder, settings)
    if agent and (fallback := serve_fallback(recorder, folder, target)) is not None:
        fallback.leave()
    if isinstance(recorder, Recorder):
        join_exchange(recorder, who)
    if agent and who.local_rank == 0 and recorder.enabled:
        _agent = HostAgent(folder, target)
        _agent.start()
    return recorder


def install(
    recorder: Recorder | NullRecorder, automatic: Iterable[Automatic] = (), topology: Topology | None = None
) -> None:
    """Make a recorder the one that the functions of this module use, and close it when the process exits.

    ``automatic`` are the spans that it records by itself; ``topology`` names the axes of their process groups.
    """
    global _automatic, _recorder  # noqa: PLW0603  (one recorder a process is the point)
    _recorder = recorder
    if isinstance(recorder, Recorder):
        _open_recorders.add(recorder)
        _automatic = AutomaticSpans(
            recorder, automatic, topology=topology, close=shutdown, in_compiled_code=_IN_COMPILED_CODE
        )


def answer_dump_requests(recorder: Recorder | NullRecorder, settings: RecorderSettings) -> None:
    """Turn torch's Flight Recorder on, as far as nobody has, and dump it when the host's agent asks for that.

    With ``MEGASCOPE_STACKS=1`` the agent may ask for Python stacks as well.
    """
    global _dumps, _stacks  # noqa: PLW0603  (one recorder a process is the point)
    if _dumps is None:
        _dumps = answer_requests(recorder, settings)
    if _stacks is None and isinstance(recorder, Recorder) and recorder.spool is not None:
        folder = attempt_folder(recorder.spool, settings.run, settings.attempt)
        _stacks = StackOnSignal.register(folder, settings.rank)


def current() -> Recorder | NullRecorder:
    """The recorder in use."""
    return _recorder


class Segment:
    """One timed region: ``with segment("forward", microbatch=i): ...``."""

    __slots__ = ("_chunk", "_clock", "_kind", "_microbatch", "_name", "_recorder", "_span")

    def __init__(self, name: str, kind: SegmentKind | str, microbatch: int | None, chunk: int | None) -> None:
        self._recorder, self._name, self._kind = _recorder, name, kind
        self._microbatch, self._chunk = microbatch, chunk

    def __enter__(self) -> None:
        recorder = self._recorder
        index = recorder.segment(self._name, self._kind)  # type: ignore[arg-type]
        self._span = recorder.begin(
            index,
            ABSENT_I32 if self._microbatch is None else self._microbatch,
            ABSENT_I16 if self._chunk is None else self._chunk,
        )
        self._clock = clock = recorder.work_clocks.get(index)
        if clock is not None:
            clock.enter()

    def __exit__(self, error: object, *_: object) -> None:
        if self._clock is not None:
            self._clock.leave()
        self._recorder.end(self._span, OK if error is None else ABORTED)  # type: ignore[arg-type]


def segment(
    name: str,
    *,
    kind: SegmentKind | str = SegmentKind.COMPUTE,
    microbatch: int | None = None,
    chunk: int | None = None,
) -> Segment:
    """Time a region of code. ``kind`` is one of `SegmentKind`; ValueError for another."""
    return Segment(name, kind, microbatch, chunk)


def begin(name: str, *, kind: SegmentKind | str = SegmentKind.COMPUTE, microbatch: int | None = None) -> Any:
    """Begin a region that no ``with`` can hold; give what it returns to `end`, on any thread."""
    index = _recorder.segment(name, kind)  # type: ignore[arg-type]
    clock = _recorder.work_clocks.get(index)
    if clock is not None:  # whoever ends it does not say what it was
        clock.doubt()
    return _recorder.begin(index, ABSENT_I32 if microbatch is None else microbatch)


def end(span: Any) -> None:
    """End a region that `begin` began."""
    _recorder.end(span)


def step(number: int, **metrics: float | None) -> None:
    """Begin an optimizer iteration. Metrics are those of the step before, as in the table ``steps``.

    Such as ``loss``, ``mfu``, ``tokens`` (of the whole job), and ``rank_tokens`` (of this rank's own compute): where
    ranks are given unequally many, `megascope stragglers` compares what they take per token.
    """
    if metrics:
        _recorder.step_metrics(number - 1, **metrics)
    _recorder.step(number)
    if _automatic is not None:
        _automatic.step()
    if _agent is not None:
        _agent.ensure()


def timed(
    name: str | None = None, *, kind: SegmentKind | str = SegmentKind.COMPUTE
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator that times every call of a function, under its own name by default."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        label = name or function.__qualname__

        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with segment(label, kind=kind):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def loader(iterable: Iterable[_T], *, name: str = "data_wait") -> TimedLoader[_T]:
    """The same iterable, with each wait for its next item a span of kind data.

    Loaders of torch (`torch.utils.data.DataLoader`) are timed by themselves.
    """
    return TimedLoader(iterable, current, name)


def shutdown(reason: str = "finished") -> None:
    """Stop recording; what was recorded is complete. The agent goes on until it has written everything."""
    global _automatic, _dumps, _recorder, _stacks
    automatic, _automatic = _automatic, None
    recorder, _recorder = _recorder, NullRecorder()
    dumps, _dumps = _dumps, None
    stacks, _stacks = _stacks, None
    if stacks is not None:
        stacks.close()
    if dumps is not None:
        dumps.close()
    if automatic is not None:
        automatic.close()
    if isinstance(recorder, Recorder):
        recorder.close(reason)
        _open_recorders.discard(recorder)
    if _agent is not None:
        _agent.revive()


def _exited() -> None:
    """The process ends without `shutdown`: by itself, or because it was told to."""
    told = _automatic is not None and _automatic.was_told_to_end
    shutdown("interrupted" if told else "exited")


_IN_COMPILED_CODE: dict[Callable[..., Any], Callable[..., Any]] = {
    segment: no_segment,
    begin: no_begin,
    end: no_end,
}


def _detach_after_fork() -> None:
    global _agent, _automatic, _dumps, _recorder, _stacks
    automatic, _automatic = _automatic, None
    _recorder, _agent, _dumps, _stacks = NullRecorder(), None, None, None
    for recorder in list(_open_recorders):
        recorder.detach()  # first: what is undone must not write to the parent's box
    _open_recorders.clear()
    if automatic is not None:
        automatic.close()


atexit.register(_exited)
os.register_at_fork(after_in_child=_detach_after_fork)
