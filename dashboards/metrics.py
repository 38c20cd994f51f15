"""``/metrics`` of a server: the newest run of its store, from what was computed before, never by a query of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, g, request

from ..collectors.alarms.rules import named
from ..collectors.metrics.exposition import render
from ..collectors.metrics.family import Samples
from ..collectors.reading.store import Attempt
from ..profiler.opening import versions
from .curves import Headline, headline
from .metrics_families import ANALYSERS, INCIDENTS, MOST_CULPRITS, SERVER_FAMILIES
from .verdicts import hang_key, hang_of, straggler_key, stragglers_of
from .view import View
from .workbench import Latest, Workbench

EVERY_S = {"state": 15.0, "hang": 15.0, "stragglers": 60.0}
"""A scrape asks for newer values no more often; they are computed in the background, and shown by a later one."""

REST = 9
"""After a computation there is so many times its own length of rest: scrapes alone take a tenth of a core at most."""

TIMED = ("/data/", "/export/", "/_dash-update-component")

_KEY = "metrics"
_OPEN = "SELECT kind, count(*) AS open FROM incidents WHERE closed_ns IS NULL GROUP BY kind"


@dataclass(frozen=True, slots=True)
class State:
    """What small queries tell of the newest attempt."""

    attempt: Attempt
    numbers: Headline
    incidents: dict[str, int]


def state_of(bench: Workbench) -> State:
    """Query the newest attempt; for the background."""
    attempt = bench.attempt(View())
    found = {str(row["kind"]): int(row["open"]) for row in bench.store.query(_OPEN, attempt=attempt).to_pylist()}
    counts = {kind: found.pop(kind, 0) for kind in INCIDENTS[:-1]}
    return State(attempt, headline(bench.store, attempt), counts | {INCIDENTS[-1]: sum(found.values())})


class ServerMetrics:
    """Answers scrapes, and counts how long requests for data take."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, self._lock = bench, threading.Lock()
        self._asked: dict[Hashable, float] = {}
        self._routes: dict[str, tuple[int, float]] = {}
        self._version = versions().get("megascope", "")

    def timed(self, route: str, took_s: float) -> None:
        """A request of a route, as its rule names it, has been answered."""
        with self._lock:
            count, total_s = self._routes.get(route, (0, 0.0))
            self._routes[route] = count + 1, total_s + took_s

    def samples(self) -> Samples:
        """The values as they stand; newer ones are asked for where it is time."""
        samples = Samples(SERVER_FAMILIES)
        samples.add("megascope_server_info", 1, self._version)
        with self._lock:
            routes = dict(self._routes)
        for route, (count, total_s) in routes.items():
            samples.add("megascope_server_query_seconds", total_s, route, count=count)
        bench = self._bench
        state = self._latest(_KEY, EVERY_S["state"], lambda: bench.latest(_KEY, lambda: state_of(bench))).value
        if state is not None:
            self._add_state(samples, state)
            self._add_stragglers(samples, state.attempt)
            self._add_hang(samples, state.attempt)
        return samples

    def _latest(self, key: Hashable, every_s: float, ask: Callable[[], Latest[Any]]) -> Latest[Any]:
        """What is known; asked for anew where nothing is, or where it is time."""
        known, now = self._bench.peek(key), time.monotonic()
        if known is not None and known.age_s is not None:
            is_rested = known.age_s >= REST * (known.cost_s or 0.0)
            if not is_rested or now - self._asked.get(key, float("-inf")) < every_s:
                return known
        self._asked = {**self._asked, key: now}
        return ask()

    def _add_state(self, samples: Samples, state: State) -> None:
        run, numbers = state.attempt.run, state.numbers
        samples.add("megascope_job_attempt", state.attempt.attempt, run)
        samples.add("megascope_job_active", state.attempt.exit_reason is None and state.attempt.end_ns is None, run)
        samples.add("megascope_job_ranks", state.attempt.world_size, run)
        samples.add("megascope_job_step", numbers.last_step, run)
        samples.add("megascope_job_step_seconds", None if numbers.step_ns is None else numbers.step_ns / 1e9, run)
        samples.add("megascope_job_tokens_per_second", numbers.tokens_per_second, run)
        samples.add("megascope_job_mfu_ratio", numbers.mfu, run)
        samples.add("megascope_job_loss", numbers.loss, run)
        samples.add("megascope_job_grad_norm", numbers.grad_norm, run)
        samples.add("megascope_job_data_age_seconds", self._bench.store.data_age_s(state.attempt), run)
        for kind, count in state.incidents.items():
            samples.add("megascope_job_incidents_open", count, run, kind)

    def _add_stragglers(self, samples: Samples, attempt: Attempt) -> None:
        ask = lambda: stragglers_of(self._bench, attempt, wait_s=0.0)  # noqa: E731
        latest = self._latest(straggler_key(attempt), EVERY_S["stragglers"], ask)
        verdict = latest.value
        self._add_verdict(samples, attempt.run, "stragglers", latest, verdict)
        if verdict is not None:
            samples.add("megascope_slowdown_ratio", verdict.slowdown, attempt.run)

    def _add_hang(self, samples: Samples, attempt: Attempt) -> None:
        ask = lambda: hang_of(self._bench, attempt, wait_s=0.0)  # noqa: E731
        latest = self._latest(hang_key(attempt), EVERY_S["hang"], ask)
        verdict = None if latest.value is None else latest.value.verdict
        self._add_verdict(samples, attempt.run, "hang", latest, verdict)
        if verdict is not None:
            samples.add("megascope_victims", verdict.victims, attempt.run)

    def _add_verdict(self, samples: Samples, run: str, analyser: str, latest: Latest[Any], verdict: Any) -> None:
        if not latest.stamp:
            return
        samples.add("megascope_verdict_failed", latest.error is not None, run, analyser)
        samples.add("megascope_analysis_seconds", latest.cost_s, run, analyser)
        if verdict is None:
            return
        samples.add_states("megascope_verdict", ANALYSERS[analyser], str(verdict.verdict), run, analyser)
        if latest.error is None:  # otherwise the age is that of the failure
            samples.add("megascope_verdict_age_seconds", latest.age_s, run, analyser)
        samples.add("megascope_culprits", len(verdict.culprits), run, analyser)
        shown: dict[tuple[str, str, str, str], float] = {}
        for one in verdict.culprits[:MOST_CULPRITS]:
            cause = str(getattr(one, "cause", "") or "")
            labels = (str(one.kind), cause, named(one.ranks), named(one.hosts))
            shown[labels] = max(one.confidence, shown.get(labels, 0.0))
        for labels, confidence in shown.items():
            samples.add("megascope_culprit_confidence_ratio", confidence, run, analyser, *labels)


def add_metrics(server: Flask, bench: Workbench) -> ServerMetrics:
    """Add the route ``/metrics``, and a clock to the requests for data."""
    metrics = ServerMetrics(bench)

    @server.before_request
    def begin() -> None:
        g.megascope_begun = time.perf_counter()

    @server.after_request
    def end(response: Response) -> Response:
        rule = None if request.url_rule is None else request.url_rule.rule
        begun = g.get("megascope_begun")
        if rule is not None and rule.startswith(TIMED) and begun is not None:
            metrics.timed(rule, time.perf_counter() - begun)
        return response

    @server.get("/metrics")
    def scrape() -> Response:
        body, kind = render(metrics.samples, request.headers.get("Accept", ""))
        return Response(body, content_type=kind, headers={"Cache-Control": "no-store"})

    return metrics
