"""``megascope simulate``: a job of any size, without a GPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError
from .common import Json, parse_ranks, parse_steps, print_json, progress_of
from .mfu_curve import show_mfu_curve

if TYPE_CHECKING:
    from ..trainer.simulator.session import Recording, Simulated

POSITIVE = Number(gte=1)
FROM_ZERO = Number(gte=0)


def simulate(
    store: Annotated[Path | None, Parameter(help="Folder of the store to write to.")] = None,
    /,
    *overrides: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Settings of the model and the cluster: see --settings.")
    ],
    layout: Annotated[str, Parameter(help="Axes and sizes; tp is innermost, pp outermost.")] = "tp=2,pp=4,dp=8",
    steps: Annotated[int, Parameter(help="Steps to simulate.", validator=POSITIVE)] = 100,
    microbatches: Annotated[int, Parameter(help="Micro-batches of a replica in a step.", validator=POSITIVE)] = 8,
    sequences: Annotated[int, Parameter(help="Sequences in a micro-batch.", validator=POSITIVE)] = 1,
    chunks: Annotated[int, Parameter(help="Virtual stages (interleaved 1F1B above 1).", validator=POSITIVE)] = 1,
    fault: Annotated[
        tuple[str, ...], Parameter(negative="", help="A fault to put in; may be given several times.")
    ] = (),
    noise: Annotated[str, Parameter(help="builtin, none, or a what-if trace in Parquet to draw from.")] = "builtin",
    skew_ms: Annotated[float, Parameter(help="Hosts' clocks are off by up to this.", validator=FROM_ZERO)] = 0.0,
    drift_ppm: Annotated[float, Parameter(help="Hosts' clocks drift by up to this.", validator=FROM_ZERO)] = 0.0,
    clock_offsets: Annotated[
        bool, Parameter(negative="", help="Write the true offsets of the clocks, as if they had been measured.")
    ] = False,
    spans: Annotated[
        str | None,
        Parameter(help="Ranks and steps whose spans are kept: ranks=0-63,steps=90:99, or all, or none."),
    ] = None,
    heartbeat_s: Annotated[
        float | None,
        Parameter(help="Seconds between heartbeats; ten in all by default, 0 for none.", validator=FROM_ZERO),
    ] = None,
    seed: Annotated[int, Parameter(help="Equal seeds give equal stores.", validator=FROM_ZERO)] = 0,
    run: Annotated[str, Parameter(help="Name of the run.")] = "simulated",
    config: Annotated[Path | None, Parameter(help="Model and cluster in TOML.")] = None,
    settings: Annotated[bool, Parameter(negative="", help="List the settings of model and cluster.")] = False,
    mfu_curve: Annotated[
        Literal["175b", "530b"] | None,
        Parameter(help="No job, but the MFU of this model from hundreds to 100,000 GPUs, each technique on and off."),
    ] = None,
    gpus: Annotated[str | None, Parameter(help="With --mfu-curve: other numbers of GPUs, as 256,1024,12288.")] = None,
    json: Json = False,
) -> int:
    """Simulate a training job of up to a million ranks and write what its agents would have written.

    All ranks get rollups, steps and heartbeats; spans are kept of the ranks and steps that --spans names: by default
    of all in jobs of up to 64 ranks, else of the first pipeline in the last ten steps.

    Example: megascope simulate runs/fleet --layout tp=8,pp=8,dp=192 --steps 100 --fault slow-gpu:rank=1234:factor=1.3
    """
    if settings:
        from ..trainer.simulator.config import print_settings  # noqa: PLC0415

        print_settings()
        return 0
    if mfu_curve is not None:
        show_mfu_curve(mfu_curve, gpus, store, json=json)
        return 0
    if gpus is not None:
        raise UsageError("--gpus is of --mfu-curve: give the job's size with --layout.")
    if store is None:
        raise UsageError("Say where to write: megascope simulate STORE.")
    from ..collectors.storage.address import store_path  # noqa: PLC0415
    from ..trainer.simulator.config import costs_of, load_simulation, parse_layout  # noqa: PLC0415
    from ..trainer.simulator.faults import parse_fault  # noqa: PLC0415
    from ..trainer.simulator.job import SimulatedJob  # noqa: PLC0415
    from ..trainer.simulator.noise import load_noise  # noqa: PLC0415
    from ..trainer.simulator.writing import simulate as write  # noqa: PLC0415

    store = store_path(store)
    chosen, axes = load_simulation(config, overrides), parse_layout(layout)
    job = SimulatedJob(
        layout=axes,
        steps=steps,
        microbatches=microbatches,
        chunks=chunks,
        costs=costs_of(chosen, axes, microbatches=microbatches, chunks=chunks, sequences=sequences),
        gpus_per_host=chosen.cluster.gpus_per_host,
        seed=seed,
        skew_ms=skew_ms,
        drift_ppm=drift_ppm,
        noise=load_noise(noise),
        run=run,
    )
    faults = [parse_fault(text) for text in fault]
    done_steps = min([job.steps, *(one.first_step for one in faults if one.is_hang)])
    recording = _recording(
        spans, job.world_size, done_steps, job.grid.rank[:, 0, 0].tolist(), heartbeat_s, clock_offsets
    )
    began = time.perf_counter()
    with progress_of("simulating") as progress:
        done = write(job, store, recording, faults=faults, progress=progress)
    _report(done, store, time.perf_counter() - began, json=json)
    return 0


def _recording(
    spans: str | None, world: int, steps: int, pipeline: list[int], heartbeat_s: float | None, clock_offsets: bool
) -> Recording:
    from ..trainer.simulator.session import Recording  # noqa: PLC0415

    more: dict[str, Any] = {"heartbeat_s": heartbeat_s, "clock_offsets": clock_offsets}
    if spans == "none":
        return Recording(**more)
    if spans == "all" or (spans is None and world <= 64):
        return Recording(span_ranks=None, **more)
    if spans is None:
        last = (max(0, steps - 10), steps - 1) if steps > 0 else None
        return Recording(span_ranks=tuple(pipeline), span_steps=last, **more)
    ranks, chosen = parse_spans(spans)
    if chosen is not None and chosen[1] >= 2**62:
        chosen = (chosen[0], max(chosen[0], steps - 1))
    return Recording(span_ranks=ranks, span_steps=chosen, **more)


def parse_spans(text: str) -> tuple[tuple[int, ...] | None, tuple[int, int] | None]:
    """``"ranks=0-7,12,steps=90:99"`` to ranks and first and last step; None where all are meant.

    Raises UsageError for anything else.
    """
    ranks_text, found, steps_text = text.partition("steps=")
    ranks_text = ranks_text.strip().removesuffix(",")
    if ranks_text and not ranks_text.startswith("ranks="):
        raise UsageError(f"--spans {text} is neither all nor none: give ranks=0-63,steps=90:99, or one of both.")
    ranks = parse_ranks(ranks_text.removeprefix("ranks=")) if ranks_text else None
    for part in ranks_text.removeprefix("ranks=").split(",") if ranks_text else ():
        first, dash, last = part.partition("-")
        if dash and int(last or first) < int(first):
            raise UsageError(f"--spans {text} has ranks {part}, which end before they begin: give the lower one first.")
    return None if ranks is None else tuple(ranks), parse_steps(steps_text) if found else None


def _report(done: Simulated, store: Path, seconds: float, *, json: bool) -> None:
    job = done.job
    step_ms = float(done.lengths_ns.mean()) / 1e6 if len(done.lengths_ns) else None
    values = {
        "store": str(store),
        "run": job.run,
        "ranks": job.world_size,
        "hosts": job.grid.hosts,
        "steps": len(done.lengths_ns),
        "step_ms": step_ms,
        "spans": done.spans,
        "spans_written": done.written_spans,
        "windows_written": done.window_rows,
        "seconds": round(seconds, 3),
    }
    if json:
        print_json(values)
        return
    took = "" if step_ms is None else f", {step_ms:,.1f} ms each"
    sys.stdout.write(
        f"run {job.run}: {job.world_size:,} ranks on {job.grid.hosts:,} hosts, {len(done.lengths_ns)} steps{took}\n"
        f"{done.spans:,} spans ran: all in {done.window_rows:,} windows, {done.written_spans:,} kept one by one: "
        f"store {store} ({seconds:.1f} s)\n"
    )
