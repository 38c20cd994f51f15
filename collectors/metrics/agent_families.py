"""Every family that an agent shows, in one list."""

from __future__ import annotations

from .family import Family, by_name
from .hardware_gauges import HARDWARE

MOST_RANKS = 64
"""Of a host with more ranks the first ones have values of their own; ``megascope_hidden_ranks`` counts the others."""

MOST_RUNS = 8
"""Runs of one agent; of more, those that ended first are left out."""

_RUN = ("run",)
_RANK = ("run", "rank")
_STAGED = ("run", "rank", "stage")

OF_RANK: tuple[Family, ...] = (
    Family("megascope_step", "gauge", "Step that the rank is in.", _RANK),
    Family("megascope_step_seconds", "summary", "Duration of the rank's finished steps.", _RANK),
    Family("megascope_last_step_seconds", "gauge", "Duration of the rank's newest finished step.", _RANK),
    Family(
        "megascope_work_seconds_total",
        "counter",
        "Self time of compute, optimizer, data and gc segments in timed steps.",
        _STAGED,
    ),
    Family(
        "megascope_straggler_ratio",
        "gauge",
        "Self time of work in the newest 16 steps over the median of this host's other ranks of the same stage; "
        "without such peers there is none.",
        _STAGED,
    ),
    Family(
        "megascope_exposed_wait_seconds_total",
        "counter",
        "Time that the rank's work waited for communication, in timed steps.",
        _RANK,
    ),
    Family(
        "megascope_in_flight_age_seconds",
        "gauge",
        "Age of the oldest operation in flight at the last heartbeat; without any there is none.",
        _RANK,
    ),
    Family("megascope_heartbeat_age_seconds", "gauge", "Time since the agent last sampled the rank.", _RANK, ages=True),
    Family("megascope_quiet_seconds", "gauge", "Time since anything in the rank's black box moved.", _RANK),
    Family("megascope_rank_alive", "gauge", "1 while the process lives, 0 once it died without a goodbye.", _RANK),
    Family("megascope_spans_total", "counter", "Spans completed.", _RANK),
    Family(
        "megascope_lost_spans_total",
        "counter",
        "Spans that are not in the store: overwritten before they were read, or dropped because of the quota.",
        (*_RANK, "reason"),
    ),
    Family("megascope_unslotted_spans_total", "counter", "Spans that were unseen while they were open.", _RANK),
    Family("megascope_lost_metadata_total", "counter", "Lines and values of metadata that were lost.", _RANK),
)

OF_RUN: tuple[Family, ...] = (
    Family("megascope_attempt", "gauge", "Number of the newest attempt.", _RUN),
    Family("megascope_active", "gauge", "1 while the newest attempt runs on this host, 0 afterwards.", _RUN),
    Family("megascope_world_size", "gauge", "Ranks that the job was launched with.", _RUN),
    Family("megascope_local_ranks", "gauge", "Ranks of this host.", _RUN),
    Family("megascope_hidden_ranks", "gauge", "Ranks of this host that are left out of these metrics.", _RUN),
    Family("megascope_tokens_total", "counter", "Tokens of the whole job, as ranks of this host told them.", _RUN),
    Family("megascope_tokens_per_second", "gauge", "Tokens of the whole job in the newest step, per second.", _RUN),
    Family("megascope_mfu_ratio", "gauge", "Model FLOP/s utilization of the job in the newest step, 0 to 1.", _RUN),
    Family("megascope_loss", "gauge", "Training loss of the newest step.", _RUN),
    Family("megascope_grad_norm", "gauge", "Norm of the gradient before clipping, of the newest step.", _RUN),
    Family("megascope_rank_deaths_total", "counter", "Ranks of this host that died without a goodbye.", _RUN),
    Family("megascope_stalls_total", "counter", "Times that nothing moved on this host.", _RUN),
    Family("megascope_incidents_open", "gauge", "Incidents of this host that are open.", (*_RUN, "kind")),
    Family(
        "megascope_recording_overhead_ratio",
        "gauge",
        "How much longer a timed step takes than one without timings, 0.01 for 1 %.",
        _RUN,
    ),
    Family("megascope_recorder_span_seconds", "gauge", "What recording one span costs a rank, at its start.", _RUN),
    Family("megascope_pending_spans", "gauge", "Spans read and not yet in the store.", _RUN),
    Family("megascope_store_writable", "gauge", "1 while the store takes what the agent writes, else 0.", _RUN),
)

OF_AGENT: tuple[Family, ...] = (
    Family("megascope_agent_info", "gauge", "1; host is the name in verdicts.", ("host", "version")),
    Family("megascope_agent_turn_age_seconds", "gauge", "Time since these values were taken.", ages=True),
    Family("megascope_agent_turn_seconds", "summary", "Duration of the agent's turns."),
    Family("megascope_agent_cpu_seconds_total", "counter", "CPU time of the agent."),
    Family("megascope_agent_resident_memory_bytes", "gauge", "Resident memory of the agent."),
    Family("megascope_spool_bytes", "gauge", "Space that the spool takes."),
    Family("megascope_spool_free_bytes", "gauge", "Space left on the spool's disk."),
    Family("megascope_spool_disk_bytes", "gauge", "Size of the spool's disk."),
    Family("megascope_store_bytes", "gauge", "Size of the store when it was last measured."),
    Family("megascope_store_quota_bytes", "gauge", "Size beyond which spans are dropped."),
)

AGENT_FAMILIES = by_name((*OF_RANK, *OF_RUN, *OF_AGENT, *HARDWARE))
