"""The tables of the store: every column with its type and its meaning, versioned."""

from __future__ import annotations

import pyarrow as pa

from .hardware import HARDWARE_EVENTS, HEALTH, MACHINES
from .schema_types import F64 as _F64
from .schema_types import FLIGHT, GROUP_PROGRESS, SCHEMA_VERSION, Column, Table
from .schema_types import I16 as _I16
from .schema_types import I32 as _I32
from .schema_types import I64 as _I64
from .schema_types import NAME as _NAME
from .schema_types import table_of as _table

__all__ = [
    "FLIGHT",
    "GROUP_PROGRESS",
    "OPEN",
    "RANKS_PER_BLOCK",
    "SCHEMA_VERSION",
    "TABLES",
    "WRITER_COLUMN",
    "WRITTEN_COLUMN",
    "Column",
    "Table",
    "block_name",
    "is_open_block",
    "open_block_name",
]

RANKS_PER_BLOCK = 512

WRITTEN_COLUMN, WRITER_COLUMN = "written_ns", "writer"
"""Columns that only the files have: the views use them to choose the newest row of a key, and leave them out."""

_WRITTEN = Column(
    WRITTEN_COLUMN,
    _I64,
    "When the row was written, UTC: of several rows of a key, by whatever writer, views show the last.",
)
_RANK = Column("rank", _I32, "Global rank.", nullable=False)
_GROUP = Column("group", _I64, "Group identity, as in `groups`.")
_SEQUENCE = Column("sequence", _I64, "Number of the operation in its group, from 1; per direction for p2p.")
_PEER = Column("peer", _I32, "Global rank at the other end of a p2p operation.")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _table(
            "runs",
            "One attempt of a run.",
            Column("layout", pa.string(), "JSON object: axis to size, the outermost axis first."),
            Column("world_size", _I32, "Number of ranks that the job was launched with."),
            Column("configuration", pa.string(), "JSON object: the job's configuration as it ran."),
            Column("versions", pa.string(), "JSON object: versions of megascope, Python, torch and others."),
            Column("start_ns", _I64, "First moment recorded, UTC."),
            Column("end_ns", _I64, "Last moment recorded, UTC; NULL while the attempt runs."),
            Column(
                "exit_reason",
                pa.string(),
                "finished, exited (without saying whether it was done), interrupted or crashed; NULL: runs, or was "
                "imported from a recording that does not tell.",
            ),
            _WRITTEN,
            Column(WRITER_COLUMN, _NAME, "Who wrote the row: the agent of a host, an importer, a simulator."),
        ),
        _table(
            "ranks",
            "Where a rank ran and where it stands in the mesh.",
            _RANK,
            Column("host", _NAME, "Name of the machine.", nullable=False),
            Column("local_rank", _I32, "Index of the rank on its host."),
            Column("device", pa.string(), "GPU UUID; NULL on a CPU."),
            Column("pid", _I32, "Process id on the host."),
            _WRITTEN,
            has_axes=True,
        ),
        _table(
            "groups",
            "The ranks of one process group.",
            Column("group", _I64, "Identity: a hash of kind and sorted global ranks.", nullable=False),
            Column("kind", _NAME, "Axis (tp, dp, ...), world, or a pipeline edge (pp_forward, ...).", nullable=False),
            Column("ranks", pa.list_(_I32), "Global ranks, ascending.", nullable=False),
            _WRITTEN,
        ),
        _table(
            "segments",
            "A named region of code that is timed.",
            Column("segment", _I64, "Identity: a hash of name, kind and axis.", nullable=False),
            Column("name", pa.string(), "Name as the code gave it.", nullable=False),
            Column(
                "kind", _NAME, "compute, collective, p2p, data, checkpoint, optimizer, gc, eval, compile, init or host."
            ),
            Column("axis", _NAME, "The axis that it communicates over; NULL for work."),
            _WRITTEN,
        ),
        _table(
            "schedule",
            "What was meant to run in every step: the actions of a pipeline stage in order.",
            Column("stage", _I32, "Index on the pp axis.", nullable=False),
            Column("position", _I32, "Place in the stage's list, from 0.", nullable=False),
            Column("action", _NAME, "forward, backward, send_forward, recv_forward, ...", nullable=False),
            Column("chunk", _I16, "Virtual pipeline stage on this rank."),
            Column("microbatch", _I32, "Micro-batch; NULL for actions of the whole step."),
            Column(
                "depends_on",
                pa.list_(pa.struct([("stage", _I32), ("position", _I32)])),
                "Actions that must have ended before this one can start.",
            ),
            _WRITTEN,
        ),
        _table(
            "events",
            "One execution of a segment: a span.",
            _RANK,
            Column("step", _I64, "Optimizer iteration; NULL before the first."),
            Column("microbatch", _I32, "Micro-batch that the span worked on."),
            Column("chunk", _I16, "Virtual pipeline stage."),
            Column("segment", _I64, "Segment identity, as in `segments`.", nullable=False),
            Column("stream", _NAME, "Device stream, or host for work on the CPU."),
            Column("thread", _I16, "Index of the writing thread in its process, from 0."),
            Column("parent", _I64, "Segment identity of the enclosing span; NULL at the top."),
            Column("start_ns", _I64, "Start, on the recording host's clock.", nullable=False),
            Column("duration_ns", _I64, "End minus start; NULL where it was not measured."),
            Column("self_ns", _I64, "Duration without children and without exposed waiting inside."),
            Column("exposed_ns", _I64, "Time that the rank's work waited for this span; NULL where nobody waited."),
            Column("enqueue_ns", _I64, "Host moment at which the work was issued; NULL where it is the start."),
            Column(
                "clock",
                _NAME,
                "host or device: the clock of start and duration; times of the device are rounded to 256 ns.",
                nullable=False,
            ),
            _GROUP,
            _SEQUENCE,
            _PEER,
            Column("size_bytes", _I64, "Payload of the operation on this rank."),
            Column("status", _NAME, "ok, unmeasured, opaque, aborted, rejected.", nullable=False),
        ),
        _table(
            "rank_windows",
            "Rollup of a rank's segment over a window of steps: spans of status ok that belong to a step. Rows of one "
            "key (run, attempt, rank, segment, window_steps, first_step) add up: a window that is not complete yet, or "
            "spans that came late, have rows of their own. Counts and sums add; least, largest and histograms merge.",
            _RANK,
            Column("segment", _I64, "Segment identity, as in `segments`.", nullable=False),
            Column("window_steps", _I32, "Length of the window: 10, 100 or 1000 steps.", nullable=False),
            Column("first_step", _I64, "First step of the window.", nullable=False),
            *(
                Column(f"{of}_{what}", kind, f"{what} of {of}_ns over the window.")
                for of in ("duration", "self")
                for what, kind in (("count", _I64), ("sum_ns", _I64), ("min_ns", _I64), ("max_ns", _I64))
            ),
            Column(
                "exposed_count", _I64, "count of exposed_ns over the window: spans that the rank's work waited for."
            ),
            Column("exposed_sum_ns", _I64, "sum of exposed_ns over the window."),
            *(
                Column(f"{of}_{part}", pa.list_(_I32), f"Log-histogram of {of}_ns: {doc}.")
                for of in ("duration", "self")
                for part, doc in (
                    ("bins", "bins, ascending; bin b holds exp(b/50) to exp((b+1)/50) ns, bin -1 holds 0"),
                    ("bin_counts", "counts of those bins"),
                )
            ),
        ),
        _table(
            "steps",
            "One optimizer iteration of a rank.",
            _RANK,
            Column("step", _I64, "Optimizer iteration.", nullable=False),
            Column("start_ns", _I64, "Start of the step on the recording host's clock.", nullable=False),
            Column("duration_ns", _I64, "Duration of the step."),
            Column("loss", _F64, "Training loss; NULL on ranks that do not compute it."),
            Column("grad_norm", _F64, "Norm of the gradient over all parameters, before clipping."),
            Column("tokens", _I64, "Tokens of the whole job in this step."),
            Column("mfu", _F64, "Model FLOP/s utilization of the job, 0 to 1; NULL where the peak is unknown."),
            Column("learning_rate", _F64, "Learning rate of the step."),
            Column("eval_loss", _F64, "Loss on held-out data after this step; NULL where none was computed."),
            Column(
                "shadow", pa.bool_(), "Whether its spans were left untimed on purpose: a shadow step, or not sampled."
            ),
            Column(
                "worked_ns",
                _I64,
                "Time of the rank's thread inside compute and optimizer segments, without recorded waits for "
                "communication, without segments of other kinds inside, and without that in which it could have run "
                "and no core was free; NULL where that is not known, where other threads of its process had a core for "
                "more than a quarter of its own time on one (it may have waited for them), and of ranks that a GPU "
                "times.",
            ),
            Column("rank_tokens", _I64, "Tokens that the rank's own compute had in this step; NULL: it did not say."),
            _WRITTEN,
        ),
        _table(
            "heartbeats",
            "What a rank was doing at a moment, sampled from outside.",
            _RANK,
            Column("moment_ns", _I64, "Moment of the sample on the host's clock.", nullable=False),
            Column("step", _I64, "Step that the rank is in."),
            Column("in_flight", pa.list_(FLIGHT), "Segments in flight, the outermost first."),
            Column("progress", pa.list_(GROUP_PROGRESS), "Last sequence number of each group."),
            Column("process_state", _NAME, "running, sleeping, disk-sleep, stopped, zombie, gone, exited."),
            Column("cpu_ns", _I64, "CPU time of the process so far."),
            Column("spans", _I64, "Spans completed so far."),
            Column("lost_spans", _I64, "Spans overwritten before they were read, so far."),
            Column("unslotted_spans", _I64, "Spans without an in-flight slot, so far: timed, but unseen while open."),
            Column("lost_metadata", _I64, "Metadata lines and values that were not written or not understood, so far."),
        ),
        HEALTH,
        HARDWARE_EVENTS,
        MACHINES,
        _table(
            "clock_offsets",
            "Offset of a host's clock from the reference host. A row that is written again for the same host, moment "
            "and source replaces the older one.",
            Column("host", _NAME, "Name of the machine.", nullable=False),
            Column("moment_ns", _I64, "Moment for which the offset holds.", nullable=False),
            Column("offset_ns", _I64, "To be added to the host's times.", nullable=False),
            Column("drift_ppb", _F64, "Change of the offset, parts per billion."),
            Column("uncertainty_ns", _I64, "No order finer than this is claimed."),
            Column("source", _NAME, "host, exchange, ends, or exchange-and-ends; NULL: not told."),
            _WRITTEN,
        ),
        _table(
            "in_flight",
            "A segment begun and not ended, in a snapshot of an incident.",
            Column("incident", pa.string(), "Incident, as in `incidents`.", nullable=False),
            _RANK,
            Column("segment", pa.string(), "Name of the segment."),
            Column("kind", _NAME, "Kind of the segment."),
            _GROUP,
            _SEQUENCE,
            _PEER,
            Column("microbatch", _I32, "Micro-batch that it works on."),
            Column("step", _I64, "Step that the rank is in."),
            Column("begun_ns", _I64, "Moment at which it began, on the host's clock."),
            Column("size_bytes", _I64, "Payload of the operation on this rank."),
            Column("waiting", pa.bool_(), "Whether the rank waits for it at this moment; NULL: not told."),
            Column("snapshot", _I16, "1 or 2: two snapshots tell slow from hung.", nullable=False),
            Column("source", _NAME, "own, flight recorder or log.", nullable=False),
        ),
        _table(
            "incidents",
            "Something that went wrong, from its opening to its close.",
            Column("incident", pa.string(), "Incident id.", nullable=False),
            Column("opened_ns", _I64, "Moment of opening.", nullable=False),
            Column("closed_ns", _I64, "Moment of closing; NULL while open."),
            Column(
                "kind",
                _NAME,
                "Of agents: rank-died, stalled; of a watch: watched; of a supervisor: recovery-..., sign-....",
            ),
            Column("verdict", pa.string(), "The verdict's JSON; NULL until there is one."),
            Column("actions", pa.string(), "JSON list of actions taken with their times."),
            _WRITTEN,
        ),
        _table(
            "faults",
            "A fault that was put in on purpose: the truth that verdicts are scored against.",
            Column("fault", pa.string(), "Fault id.", nullable=False),
            Column(
                "kind",
                _NAME,
                "Of the trainer: slow, slow-link, slow-nic, stop, freeze, hold-gil, raise, out-of-memory, kill, "
                "kill-host, no-rendezvous, nan, diverge, skip-collective, wrong-collective, wrong-size, wrong-dtype, "
                "swap-order, receive-first, skip-send, repeat-step. Of the simulator: slow-gpu, throttling, "
                "slow-host, degraded-nic, gc-drift, data-stall, storage-stall, uneven-sequences, uneven-stages, "
                "lost-heartbeats, the kinds of culprits of the hang verdict, and crawling and long-phase, which only "
                "look like a hang.",
            ),
            Column("ranks", pa.list_(_I32), "Ranks that carry the fault; none are named where all do."),
            Column("host", _NAME, "Host that carries it; NULL where it is not one host."),
            Column("link", pa.string(), "Link that carries it, as from>to; NULL otherwise."),
            Column("segment", pa.string(), "Segment that carries it; NULL for all."),
            Column("factor", _F64, "Slow-down factor; NULL where there is none."),
            Column("first_step", _I64, "First step with the fault."),
            Column("last_step", _I64, "Last step with the fault; NULL for open end."),
            Column("first_ns", _I64, "First moment at which it acted."),
            Column("last_ns", _I64, "Last moment at which it acted."),
            _WRITTEN,
        ),
    )
}


OPEN = "-open"
"""Ends the block of windows that their agent still adds to: it replaces that file as a whole, and nobody else may."""


def open_block_name(rank: int) -> str:
    """Name of the block that holds the windows of a rank's block as long as they are not complete."""
    return block_name(rank) + OPEN


def is_open_block(block: str) -> bool:
    """Whether the files of a block belong to their agent alone: they are neither compacted nor pruned."""
    return block.endswith(OPEN)


def block_name(rank: int) -> str:
    """Name of the block of 512 ranks that a rank belongs to: text, so that no reader takes it for a number."""
    return f"b{rank // RANKS_PER_BLOCK:03d}"
