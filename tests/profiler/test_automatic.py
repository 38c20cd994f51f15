"""Automatic spans: each kind is recorded, can be switched off, and leaves torch and Python as they were."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import megascope
from megascope.profiler.automatic.automatic import VARIABLE, Automatic, AutomaticSpans, choose
from megascope.profiler.automatic.data import timed_next
from megascope.profiler.automatic.exit import MAX_TEXT, describe
from megascope.profiler.automatic.torch_spans import install_compiled, install_graphs
from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.null import NullRecorder
from megascope.profiler.vocabulary import STATUS_CODES, Status
from support.fake_cuda import FakeCuda
from support.recording import Recorded

OPAQUE = STATUS_CODES.index(Status.OPAQUE)
ABORTED = STATUS_CODES.index(Status.ABORTED)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "spool"
    megascope.shutdown()


def start(spool: Path, automatic: str) -> None:
    megascope.init(spool=spool, agent=False, run="r", automatic=automatic)


def recorded_spans(spool: Path) -> list[tuple[str, str, int, int]]:
    """(segment, kind, status, duration in ns) of all completed spans, ring by ring."""
    box = next(spool.glob("*/*/rank-*.box"))
    lines = [line for _, line in read_metadata(box.with_suffix(".meta.jsonl")) if line["kind"] == "segment"]
    segments = {line["index"]: (str(line["name"]), str(line["segment_kind"])) for line in lines}
    reader = BoxReader(box)
    records = [record for ring in range(reader.layout.rings) for record in reader.read_ring(ring, 0).records]
    return [(*segments[int(r["segment"])], int(r["status"]), int(r["duration_ns"])) for r in records]


def names(spool: Path) -> list[str]:
    return [name for name, *_ in recorded_spans(spool)]


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (True, set(Automatic)),
        (False, set()),
        ("all", set(Automatic)),
        ("none", set()),
        ("gc, collectives", {Automatic.GC, Automatic.COLLECTIVES}),
        (["gc"], {Automatic.GC}),
        ("-gc", set(Automatic) - {Automatic.GC}),
        ("gc,data,-data", {Automatic.GC}),
    ],
)
def test_a_setting_names_what_is_recorded(setting: Any, expected: set[Automatic]) -> None:
    assert choose(setting) == expected


def test_the_environment_is_asked_where_the_code_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert choose(None) == set(Automatic)
    monkeypatch.setenv(VARIABLE, "none")
    assert choose(None) == set()
    monkeypatch.setenv(VARIABLE, "nonsense")
    assert choose(None) == set(Automatic)
    assert "no automatic spans called nonsense" in caplog.text


def test_an_unknown_name_is_refused(spool: Path) -> None:
    with pytest.raises(megascope.UsageError, match="no automatic spans called nonsense"):
        start(spool, "gc,nonsense")


def test_off_leaves_everything_alone_and_shutdown_puts_everything_back(spool: Path) -> None:
    import torch
    from torch.utils.data import dataloader

    def compilation() -> Any:
        """Where dynamo is loaded already, as earlier tests may have done, its callbacks are used."""
        callbacks = sys.modules.get("torch._dynamo.callback")
        return list(callbacks.callback_handler.start_callbacks) if callbacks else torch.compile

    def state() -> dict[str, Any]:
        work = torch._C._distributed_c10d.Work
        group = torch._C._distributed_c10d.ProcessGroup
        return {
            "Work.wait": work.wait,
            "ProcessGroup._start_coalescing": group._start_coalescing,
            "ProcessGroup._end_coalescing": group._end_coalescing,
            "torch.save": torch.save,
            "torch.load": torch.load,
            "compilation": compilation(),
            "Module.train": torch.nn.Module.train,
            "dataloader.__next__": dataloader._BaseDataLoaderIter.__next__,
            "gc.callbacks": list(gc.callbacks),
            "threading.excepthook": threading.excepthook,
            "sys.excepthook": sys.excepthook,
            "SIGTERM": signal.getsignal(signal.SIGTERM),
            "c10d::allreduce_": torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "ADInplaceOrView"),
        }

    before = state()
    start(spool, "none")
    assert state() == before
    megascope.shutdown()
    start(spool, "all")
    assert [name for name, now in state().items() if now == before[name]] == []
    megascope.shutdown()
    assert state() == before


# -- garbage collection -----------------------------------------------------------------------------------------------


def test_collections_are_spans_with_their_generation(spool: Path) -> None:
    start(spool, "gc")
    gc.collect(1)
    gc.collect()
    megascope.shutdown()
    gc.collect()
    spans = [(name, kind) for name, kind, *_ in recorded_spans(spool) if name != "gc_0"]
    assert spans == [("gc_1", "gc"), ("gc_2", "gc")]


def test_a_collection_inside_the_recorder_loses_nothing(spool: Path) -> None:
    start(spool, "gc")
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(300):
            with megascope.segment("outer"), megascope.segment("inner", microbatch=number):
                pass
    finally:
        gc.set_threshold(*threshold)
    megascope.shutdown()
    found = names(spool)
    assert (found.count("outer"), found.count("inner")) == (300, 300)
    assert sum(name.startswith("gc_") for name in found) >= 300


def test_without_the_switch_no_collection_is_recorded(spool: Path) -> None:
    start(spool, "-gc")
    gc.collect()
    megascope.shutdown()
    assert "gc_2" not in names(spool)


# -- data -------------------------------------------------------------------------------------------------------------


def test_a_wrapped_iterable_times_each_wait_for_data(spool: Path) -> None:
    start(spool, "none")
    loader = megascope.loader([1, 2, 3], name="batches")
    assert len(loader) == 3
    assert loader.index(3) == 2
    assert list(loader) == [1, 2, 3]
    assert list(loader) == [1, 2, 3]
    megascope.shutdown()
    assert recorded_spans(spool)[0][:3] == ("batches", "data", 0)
    assert names(spool).count("batches") == 8  # three items and the end, twice


def test_a_wrapper_made_before_init_records_after_it(spool: Path) -> None:
    loader = megascope.loader(iter([1, 2]))
    start(spool, "none")
    assert next(iter(loader)) == 1
    megascope.shutdown()
    assert names(spool) == ["data_wait"]


def test_a_wrapper_is_copied_pickled_asked_and_advanced_as_what_it_wraps(spool: Path) -> None:
    start(spool, "none")
    loader = megascope.loader([1, 2])
    for made in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert list(made) == [1, 2]
    stream = megascope.loader(iter([1, 2, 3]))
    assert [next(stream), *stream] == [1, 2, 3]
    assert not isinstance(megascope.loader([1]), Iterator)
    assert (bool(megascope.loader(iter([]))), bool(megascope.loader([])), bool(megascope.loader([0]))) == (
        True,
        False,
        True,
    )
    megascope.shutdown()
    assert names(spool) == ["data_wait"] * (3 * 3 + 4)


def test_an_error_of_the_recorder_silences_no_later_wait() -> None:
    class Broken(NullRecorder):
        def segment(self, *_: Any, **__: Any) -> int:
            raise RuntimeError("no room")

    class Counting(NullRecorder):
        begun = 0

        def begin(self, *_: Any, **__: Any) -> Any:
            self.begun += 1

    counting = Counting()
    with pytest.raises(RuntimeError):
        timed_next(Broken(), "data_wait", lambda: 1)
    assert timed_next(counting, "data_wait", lambda: 1) == 1
    assert counting.begun == 1


def test_torch_loaders_are_timed_and_stay_what_they_are(spool: Path) -> None:
    from torch.utils.data import DataLoader

    data: list[int] = list(range(6))
    loader: DataLoader[Any] = DataLoader(data, batch_size=2)  # type: ignore[arg-type]
    start(spool, "data")
    assert isinstance(loader, DataLoader)
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    wrapped: list[Any] = list(megascope.loader(loader, name="mine"))
    assert len(wrapped) == 3
    megascope.shutdown()
    assert len(list(loader)) == 3
    found = names(spool)
    assert (found.count("data_wait"), found.count("mine")) == (4, 4)  # what is wrapped is not timed twice


# -- checkpoints and evaluation ---------------------------------------------------------------------------------------


def test_saving_and_loading_are_checkpoint_spans(spool: Path, tmp_path: Path) -> None:
    import io

    import torch

    start(spool, "checkpoint")
    torch.save({"a": torch.ones(3)}, tmp_path / "state.pt")
    torch.save(torch.ones(3), io.BytesIO())
    assert torch.load(tmp_path / "state.pt")["a"].tolist() == [1, 1, 1]
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "nothing.pt")
    megascope.shutdown()
    found = [(name, kind) for name, kind, *_ in recorded_spans(spool)]
    assert found == [("checkpoint_write", "checkpoint"), *[("checkpoint_load", "checkpoint")] * 2]


def test_an_evaluation_lasts_from_eval_to_train_or_to_the_next_step(spool: Path) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    teacher = torch.nn.Linear(2, 2).requires_grad_(False)
    start(spool, "evaluation")
    megascope.step(0)
    teacher.eval()
    torch.nn.DataParallel(model).train()
    model.eval()
    modes = [model[1].training]
    model.train()
    assert [*modes, model[1].training] == [False, True]
    model.eval()
    megascope.step(1)
    model.train()
    megascope.shutdown()
    assert [(name, kind) for name, kind, *_ in recorded_spans(spool)] == [("eval", "eval")] * 2


def test_a_part_of_a_model_that_stays_in_eval_mode_is_no_evaluation(spool: Path) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    start(spool, "evaluation")
    for step in range(3):
        megascope.step(step)
        model.train()
        model[1].eval()
    assert not model[1].training
    megascope.shutdown()
    assert names(spool) == []


# -- compiled code and graphs -----------------------------------------------------------------------------------------


def test_compilation_is_a_span_and_a_segment_does_not_break_a_compiled_graph(spool: Path) -> None:
    import torch

    start(spool, "compile")

    def work(x: Any) -> Any:
        with megascope.segment("inside", microbatch=1):
            span = megascope.begin("more")
            y = x * 2
            megascope.end(span)
        return y + 1

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert work(torch.ones(2)).tolist() == [3, 3]
    megascope.shutdown()
    torch._dynamo.reset()
    assert [(name, kind) for name, kind, *_ in recorded_spans(spool)] == [
        ("compile", "compile"),
        ("more", "compute"),
        ("inside", "compute"),
    ]


def test_a_replay_of_a_graph_is_one_opaque_span_on_the_device(recorded: Recorded) -> None:
    cuda = FakeCuda()
    recorder = recorded.recorder
    timer = CudaTimer(cuda, recorder, clock=cuda.host_ns)
    recorder.device = timer

    class Graph:
        def replay(self) -> None:
            cuda.current.launch(5.0)

    plain = Graph.replay
    undo = install_graphs(recorder, Graph)
    assert undo is not None
    Graph().replay()
    undo()
    assert Graph.replay is plain
    cuda.now_ms = 20.0
    timer.poll()
    (span,) = recorded.spans()
    assert (int(span["status"]), int(span["clock"]), int(span["duration_ns"])) == (OPAQUE, 1, 5_000_000)
    assert cuda.synchronizations == 1  # that of the timer's own start
    recorder.device = None


def test_a_run_of_compiled_code_is_one_opaque_span_and_stays_in_the_time_around_it(recorded: Recorded) -> None:
    class Compiled:
        fx_kwargs: dict[str, bool]

        def __init__(self, **kwargs: bool) -> None:
            self.fx_kwargs = kwargs

        def __call__(self, inputs: list[int]) -> list[int]:
            time.sleep(0.02)
            return inputs

    recorder, plain = recorded.recorder, Compiled.__call__
    undo = install_compiled(recorder, Compiled)
    assert undo is not None
    outer = recorder.begin(recorder.segment("step"))
    assert Compiled()([1]) == [1]
    assert Compiled(is_backward=True)([2]) == [2]
    recorder.end(outer)
    undo()
    assert Compiled.__call__ is plain
    lines = {line["index"]: line["name"] for line in recorded.metadata() if line["kind"] == "segment"}
    found = [(lines[int(r["segment"])], int(r["status"]), int(r["self_ns"]) > 0.03e9) for r in recorded.spans()]
    assert found == [("compiled_forward", OPAQUE, False), ("compiled_backward", OPAQUE, False), ("step", 0, True)]


# -- ends -------------------------------------------------------------------------------------------------------------


def test_an_exception_that_ends_a_thread_is_a_span_and_is_still_reported(spool: Path) -> None:
    reported: list[str] = []
    previous, threading.excepthook = threading.excepthook, lambda args: reported.append(args.exc_type.__name__)
    try:
        start(spool, "exceptions")

        def fail() -> None:
            raise ValueError("bad\nbatch")

        for target in (fail, sys.exit):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        megascope.shutdown()
    finally:
        threading.excepthook = previous
    assert reported == ["ValueError", "SystemExit"]  # the second ends a thread in order
    assert [(name, status) for name, _, status, _ in recorded_spans(spool)] == [
        ("exception: ValueError: bad batch", ABORTED)
    ]


def test_texts_of_exceptions_are_trimmed() -> None:
    assert describe(ValueError, ValueError("x" * 10_000)) == "ValueError: " + "x" * (MAX_TEXT - 12) + "..."
    assert describe(KeyError, None) == "KeyError"


ENDING = """
import megascope, os, signal, sys, time
{before}
megascope.init(spool=sys.argv[1], agent=False, automatic="exit,exceptions")
megascope.step(0)
{after}
"""

USER_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(7)))"
KILL = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)"
STUCK = """
import ctypes, threading
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
library.pthread_mutex_lock(mutex)  # for ever, and no signal wakes it
"""
GOES_ON = """
signal.signal(signal.SIGTERM, lambda *_: print('noted', flush=True))
os.kill(os.getpid(), signal.SIGTERM)
until = time.monotonic() + 2
while time.monotonic() < until: time.sleep(0.1)
"""
CHAINED = """
old = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *a: (callable(old) and old(*a), print('later', flush=True), sys.exit(9)))
os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)
"""


@pytest.mark.parametrize(
    ("before", "after", "code", "reason", "output"),
    [
        ("", "", 0, "exited", ""),
        ("", "megascope.shutdown()", 0, "finished", ""),
        ("", "sys.exit(3)", 3, "exited", ""),
        ("", KILL, -signal.SIGTERM, "interrupted", ""),
        (USER_HANDLER, KILL, 7, "interrupted", "mine"),
        ("", USER_HANDLER + "\n" + KILL, 7, "exited", "mine"),
        ("", CHAINED, 9, "interrupted", "later"),
        ("", GOES_ON, 0, "exited", "noted"),
        ("", STUCK, -signal.SIGTERM, "interrupted", ""),
        ("", "raise ValueError('bad')", 1, "exception", ""),
        ("", "os._exit(4)", 4, None, ""),
    ],
    ids=[
        "end",
        "shutdown",
        "exit",
        "sigterm",
        "user",
        "user-later",
        "chained",
        "goes-on",
        "stuck",
        "exception",
        "unseen",
    ],
)
def test_a_process_says_how_it_ends(
    tmp_path: Path, before: str, after: str, code: int, reason: str | None, output: str
) -> None:
    script = ENDING.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (code, output), done.stderr
    metadata = next(tmp_path.glob("*/*/rank-*.meta.jsonl"))
    reasons = [line["reason"] for _, line in read_metadata(metadata) if line["kind"] == "exit"]
    assert reasons == ([] if reason is None else [reason])


def test_what_is_automatic_survives_a_kill(tmp_path: Path) -> None:
    script = ENDING.format(
        before="",
        after="import threading\n"
        "t = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert names(tmp_path) == ["exception: ZeroDivisionError: division by zero"]


def test_a_forked_child_keeps_no_file_open(spool: Path) -> None:
    def pipes() -> set[str]:
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return {link for link in map(os.readlink, links) if link.startswith("pipe:")}

    before = pipes()
    start(spool, "exit")
    assert len(pipes() - before) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(len(pipes() - before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_records_nothing_and_the_parent_goes_on(spool: Path) -> None:
    before = len(gc.callbacks), signal.getsignal(signal.SIGTERM)
    start(spool, "gc,exit,exceptions")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        gc.collect()
        os._exit(0 if (len(gc.callbacks), signal.getsignal(signal.SIGTERM)) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gc.collect()
    megascope.shutdown()
    assert names(spool).count("gc_2") == 1


def test_what_cannot_be_installed_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("no such thing in this version")

    monkeypatch.setattr("megascope.profiler.automatic.automatic.install_gc", fail)
    spans = AutomaticSpans(NullRecorder(), [Automatic.GC])
    spans.step()
    spans.close()
    assert caplog.text.count("no such thing in this version") == 1
