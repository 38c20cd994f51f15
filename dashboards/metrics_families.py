"""Every family that a server shows of the newest run of its store, in one list."""

from __future__ import annotations

from ..collectors.metrics.family import Family, by_name
from ..heatmap.verdict import Outcome
from ..viz3d.verdict import State

MOST_CULPRITS = 8
"""Culprits of a verdict that have a series of their own."""

ANALYSERS = {"stragglers": tuple(map(str, Outcome)), "hang": tuple(map(str, State))}
"""The two verdicts and what they can be."""

INCIDENTS = ("rank-died", "stalled", "watched", "supervisor")

_RUN = ("run",)
_JUDGED = ("run", "analyser")

SERVER_FAMILIES = by_name(
    (
        Family("megascope_job_attempt", "gauge", "Number of the newest attempt of the newest run.", _RUN),
        Family("megascope_job_active", "gauge", "1 while no end of the attempt is known, 0 afterwards.", _RUN),
        Family("megascope_job_ranks", "gauge", "Ranks that the job was launched with.", _RUN),
        Family("megascope_job_step", "gauge", "Newest step in the store.", _RUN),
        Family("megascope_job_step_seconds", "gauge", "Median duration of a step over the last 20.", _RUN),
        Family("megascope_job_tokens_per_second", "gauge", "Median throughput over the last 20 steps.", _RUN),
        Family("megascope_job_mfu_ratio", "gauge", "Median MFU over the last 20 steps, 0 to 1.", _RUN),
        Family("megascope_job_loss", "gauge", "Newest training loss.", _RUN),
        Family("megascope_job_grad_norm", "gauge", "Newest norm of the gradient, before clipping.", _RUN),
        Family("megascope_job_data_age_seconds", "gauge", "Age of the newest heartbeat or span in the store.", _RUN),
        Family(
            "megascope_job_incidents_open",
            "gauge",
            "Incidents that are open, on all hosts: noticed by agents, judged by a watch, or a supervisor's own.",
            (*_RUN, "kind"),
        ),
        Family("megascope_verdict", "gauge", "1 for the verdict that stands, 0 for the others.", (*_JUDGED, "verdict")),
        Family("megascope_verdict_age_seconds", "gauge", "Time since the verdict was reached.", _JUDGED),
        Family("megascope_verdict_failed", "gauge", "1 where the newest analysis failed, else 0.", _JUDGED),
        Family("megascope_culprits", "gauge", "Culprits that the verdict names.", _JUDGED),
        Family(
            "megascope_culprit_confidence_ratio",
            "gauge",
            f"Confidence in each of the first {MOST_CULPRITS} culprits, 0 to 1.",
            (*_JUDGED, "kind", "cause", "ranks", "hosts"),
        ),
        Family("megascope_victims", "gauge", "Ranks that wait, by the hang verdict.", _RUN),
        Family("megascope_slowdown_ratio", "gauge", "Step time as measured over that with ideal operations.", _RUN),
        Family("megascope_analysis_seconds", "gauge", "How long the newest analysis took.", _JUDGED),
        Family("megascope_server_info", "gauge", "1.", ("version",)),
        Family("megascope_server_query_seconds", "summary", "Time that requests for data took.", ("route",)),
    )
)
