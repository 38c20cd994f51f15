"""One trial of `megascope score`: simulates a job into a temporary store, asks an analyser, compares with the truth."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ..collectors.reading.store import Attempt, Store
from ..collectors.writing.writer import TableWriter
from ..heatmap.stragglers import find_stragglers
from ..trainer.simulator.clocks import HostClocks
from ..trainer.simulator.fault_effects import carriers, fault_rows
from ..trainer.simulator.faults import HELD_UP_KINDS, FaultKind, parse_fault
from ..trainer.simulator.hangs.ahead import Lead
from ..trainer.simulator.hangs.gaps import Hardness
from ..trainer.simulator.hangs.hangs import hang_scene
from ..trainer.simulator.hangs.tables import Evidence, seen_ns
from ..trainer.simulator.noise import MeasuredNoise, NoiseSource
from ..trainer.simulator.session import Recording
from ..trainer.simulator.writing import simulate
from ..viz3d.hang import HangVerdict, diagnose
from .claims import (
    ACCUSING,
    INNOCENT,
    Answer,
    Comparison,
    Truth,
    answer_of_hang,
    claims_of_hang,
    claims_of_stragglers,
    compare_claims,
)
from .trials import STEPS, Trial, looks_like

SPANS = Recording(windows=False, span_ranks=None, heartbeat_s=0)
"""What trials write: the spans of all ranks. How the hosts' clocks stand is found from them, as in any store."""

AFTER_HOURS = replace(SPANS, clock_offsets=True)
"""What trials of hangs, and of pauses that nobody recorded, write: of jobs that ran for long enough before that their
agents know how the clocks stand."""

ROLLUPS = Recording(windows=True, span_ranks=(), heartbeat_s=0)
"""What straggler trials on rollups write: without a span no clocks can be aligned, and none are."""

STAGGER_S = 1.0
"""Agents look each second, each at its own moment."""

ROOM_BYTES = 4 * 2**30
"""Memory that must be free for temporary stores: a fleet's takes a tenth of that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial came to: the verdict's word, and how its claims compare. ``failure``: why there is no verdict."""

    trial: Trial
    verdict: str
    comparison: Comparison
    seconds: float
    failure: str | None = None
    warnings: int = 0
    """Early warnings, which accuse nobody."""
    answer: Answer | None = None
    """How exact a hang verdict is."""
    verdict_s: float | None = None
    """What the verdict alone took, from an open store; None where there is none."""


def run_trials(
    trials: Sequence[Trial], *, noise: NoiseSource | None = None, processes: int = 2, within_s: float | None = None
) -> Iterator[Outcome]:
    """Run trials, several at a time, and hand out outcomes as they come.

    ``noise`` None: the built-in one; no trial is begun ``within_s`` seconds after the first. Temporary stores are
    removed. A trial in which the simulation or an analyser fails, or whose process dies, is an outcome too.
    """
    until = time.monotonic() + (math.inf if within_s is None else within_s)
    source: NoiseSource = MeasuredNoise() if noise is None else noise
    with tempfile.TemporaryDirectory(prefix="megascope-score-", dir=_parent_folder()) as folder:
        if processes >= 2 and len(trials) >= 2:
            yield from _in_processes(deque(trials), source, Path(folder), processes, until)
            return
        for trial in trials:
            if time.monotonic() >= until:
                return
            yield run_trial(trial, source, Path(folder))


def _in_processes(
    waiting: deque[Trial], noise: NoiseSource, folder: Path, processes: int, until: float
) -> Iterator[Outcome]:
    """Trials in worker processes. One that dies takes the others with it: each that ran is tried again, alone."""
    while waiting and time.monotonic() < until:
        lost: list[Trial] = []
        with _pool(processes) as pool:
            running: dict[Future[Outcome], Trial] = {}
            while not lost:
                while waiting and len(running) < processes and time.monotonic() < until:
                    try:
                        future = pool.submit(run_trial, waiting[0], noise, folder)
                    except BrokenProcessPool:  # it broke while outcomes were handed out
                        break
                    running[future] = waiting.popleft()
                if not running:
                    break
                for one in wait(running, return_when=FIRST_COMPLETED).done:
                    trial = running.pop(one)
                    try:
                        yield one.result()
                    except BrokenProcessPool:
                        lost.append(trial)
        for trial in [*lost, *running.values()]:
            yield _alone(trial, noise, folder)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _alone(trial: Trial, noise: NoiseSource, folder: Path) -> Outcome:
    """A trial in a process of its own, whose death is its outcome."""
    began = time.perf_counter()
    try:
        with _pool(1) as pool:
            return pool.submit(run_trial, trial, noise, folder).result()
    except BrokenProcessPool:
        reason = "its process died, perhaps for lack of memory"
        return Outcome(trial, "", Comparison(), time.perf_counter() - began, reason)


def run_trial(trial: Trial, noise: NoiseSource, parent: Path | None = None) -> Outcome:
    """Simulate one job in a folder below ``parent``, judge it, compare, and remove it."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        root = Path(folder) / "store"
        try:
            judge = _hang_trial if trial.looks_at_hangs else _slow_trial
            judged = judge(trial, root, noise)
        except Exception as error:  # a campaign outlives a defect of an analyser, and tells of it
            reason = f"{type(error).__name__}: {error}"
            return Outcome(trial, "", Comparison(), time.perf_counter() - began, reason)
    return replace(judged, seconds=time.perf_counter() - began)


def _parent_folder() -> Path | None:
    """Memory, where there is enough of it: a store that is removed at once need not be synced to a disk."""
    memory = Path("/dev/shm")
    is_usable = memory.is_dir() and os.access(memory, os.W_OK)
    return memory if is_usable and shutil.disk_usage(memory).free >= ROOM_BYTES else None


def _slow_trial(trial: Trial, root: Path, noise: NoiseSource) -> Outcome:
    job = replace(trial.job(), noise=noise)
    faults = [parse_fault(trial.fault)] if trial.fault else []
    simulate(job, root, _recording(trial), faults=faults)
    with Store(root) as store:
        attempt = store.attempt()
        began = time.perf_counter()
        verdict = find_stragglers(store, attempt)
        took_s = time.perf_counter() - began
        also = looks_like(faults[0], STEPS, on_rollups=trial.on_rollups) if faults else frozenset[str]()
        comparison = compare_claims(claims_of_stragglers(verdict), _truth(store, attempt, also))
        return Outcome(trial, str(verdict.verdict), comparison, 0.0, warnings=len(verdict.warnings), verdict_s=took_s)


def _recording(trial: Trial) -> Recording:
    """What a straggler trial writes. Launches are compared over hosts, by the clocks that agents have measured: where
    they are what is looked at, these are known."""
    if trial.leaves_out:
        return replace(AFTER_HOURS, leaves_out=trial.leaves_out)
    return ROLLUPS if trial.on_rollups else SPANS


def _hang_trial(trial: Trial, root: Path, noise: NoiseSource) -> Outcome:
    job = replace(trial.job(), noise=noise)
    hardness = Hardness(missing=trial.missing, lead=Lead(trial.in_flight, trial.reads_results), stagger_s=STAGGER_S)
    fault = parse_fault(trial.fault) if trial.fault else None
    hangs = [fault] if fault is not None and fault.is_hang else []
    done = simulate(job, root, AFTER_HOURS, faults=hangs, hardness=hardness)
    now_ns = None
    if not hangs:
        moment_ns = int(done.moments_ns[-1])
        origin_ns = HostClocks.of(job).recorded_ns(np.full(job.world_size, moment_ns), job.grid.host)
        silent = carriers(fault, job) if fault is not None else ()
        scene = hang_scene(job, None, job.first_step + job.steps, hardness.lead)
        with TableWriter(root, "agents") as writer:
            Evidence.of(scene, origin_ns, silent, hardness).write(writer)
            if fault is not None:
                writer.write("faults", job.run, job.attempt, {k: [v] for k, v in fault_rows([fault], job)[0].items()})
            writer.commit()
        # the job still runs: its end is not to be looked at
        now_ns = moment_ns + seen_ns(scene)[-1] + round(STAGGER_S * 1e9)
    with Store(root) as store:
        attempt = store.attempt()
        if fault is not None and fault.kind in HELD_UP_KINDS:
            now_ns = store.query("SELECT max(moment_ns) AS last FROM heartbeats", attempt=attempt)["last"][0].as_py()
        began = time.perf_counter()
        verdict = diagnose(store, attempt, now_ns=now_ns)
        took_s, truth = time.perf_counter() - began, _truth(store, attempt)
        heard = frozenset(store.query("SELECT DISTINCT rank FROM heartbeats", attempt=attempt)["rank"].to_pylist())
    is_innocent = truth is not None and truth.kind in INNOCENT
    comparison = compare_claims(claims_of_hang(verdict), None if is_innocent else truth)
    if is_innocent:
        is_fine = _is_fine(verdict, truth, heard)
        comparison = replace(comparison, found=is_fine, placed=is_fine)
    answer = answer_of_hang(verdict, truth, heard)
    return Outcome(trial, str(verdict.verdict), comparison, 0.0, answer=answer, verdict_s=took_s)


def _is_fine(verdict: HangVerdict, truth: Truth | None, heard: frozenset[int]) -> bool:
    """Whether a job that goes on is let be, and all ranks that fell silent are named as missing."""
    if truth is None or verdict.verdict in ACCUSING:
        return False
    return truth.kind != FaultKind.LOST_HEARTBEATS or frozenset(verdict.missing) & heard == truth.ranks & heard


def _truth(store: Store, attempt: Attempt, also: frozenset[str] = frozenset()) -> Truth | None:
    """The only row of ``faults``; None in a healthy job."""
    rows = store.query("SELECT kind, ranks, host FROM faults", attempt=attempt).to_pylist()
    if not rows:
        return None
    ranks = frozenset(rows[0]["ranks"])
    return Truth(str(rows[0]["kind"]), ranks, rows[0]["host"], also, len(ranks) == attempt.world_size)
