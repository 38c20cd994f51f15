"""`megascope score`: precision and recall of the analysers over simulated jobs whose faults are known."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..trainer.simulator.faults import FaultKind
from ..trainer.simulator.noise import load_noise
from .claims import Answer
from .kinds import HEALTHY, KINDS, SeedSet
from .runs import Outcome, run_trials
from .trials import IN_FLIGHT, MISSING, Trial, plan_trials

FINE_WORDS = frozenset({"healthy", "running", "finished"})
"""Verdicts that say that nothing is wrong."""


@dataclass(frozen=True, slots=True)
class KindScore:
    """What the trials of one kind, and the claims of that name in all trials, came to.

    ``found``: trials whose verdict names place and kind; ``located``: those whose place is named at least.
    ``called_fine``: trials whose verdict says that nothing is wrong. ``claims`` counts the accusations under this
    kind's name in all trials, ``right`` those with the right place and name, ``misnamed`` with the right place alone.
    ``answers`` counts the trials of `hang` by how exact the verdict was.
    """

    kind: str
    trials: int
    found: int
    located: int
    called_fine: int
    claims: int
    right: int
    misnamed: int
    failed: int
    answers: Mapping[Answer, int] = field(default_factory=dict)

    def share_of(self, answer: Answer) -> float | None:
        """Share of the kind's hang verdicts that were so exact; None where there were none."""
        return _share(self.answers.get(answer, 0), sum(self.answers.values()))

    @property
    def recall(self) -> float | None:
        """Share of the kind's trials that were found; None without trials."""
        return _share(self.found, self.trials)

    @property
    def recall_of_place(self) -> float | None:
        """Share of the kind's trials in which those to blame were named, under whatever kind."""
        return _share(self.located, self.trials)

    @property
    def precision(self) -> float | None:
        """Share of the claims of this name that were right; None where there were none."""
        return _share(self.right, self.claims)

    @property
    def precision_of_place(self) -> float | None:
        """Share of the claims of this name that blamed none but those to blame."""
        return _share(self.right + self.misnamed, self.claims)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


@dataclass(frozen=True, slots=True)
class AnalyserScore:
    """What one verb's trials came to: how many of them, how many of a healthy job, how many of these it accused
    somebody in, and what a verdict alone took in seconds (None where none was reached)."""

    trials: int
    healthy_trials: int
    false_alarms: int
    median_s: float | None
    worst_s: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a campaign. ``false_alarms`` are healthy trials with at least one accusation, ``false_warnings``
    those with an early warning."""

    ranks: int
    seeds: SeedSet
    noise: str
    trials: int
    seconds: float
    kinds: tuple[KindScore, ...]
    healthy_trials: int
    false_alarms: int
    false_warnings: int = 0
    outcomes: tuple[Outcome, ...] = field(repr=False, default=())

    def analysers(self) -> dict[str, AnalyserScore]:
        """By verb, those that were asked."""
        asked = {verb: [one for one in self.outcomes if one.trial.looks_at_hangs == hangs] for verb, hangs in _VERBS}
        return {verb: _of_analyser(outcomes) for verb, outcomes in asked.items() if outcomes}

    @property
    def has_failed(self) -> bool:
        """Whether there were trials, and not one came to a verdict."""
        return bool(self.outcomes) and all(one.failure is not None for one in self.outcomes)


_VERBS = (("stragglers", False), ("hang", True))


def _of_analyser(outcomes: Sequence[Outcome]) -> AnalyserScore:
    healthy = [one for one in outcomes if one.trial.kind == HEALTHY]
    took = [one.verdict_s for one in outcomes if one.verdict_s is not None]
    return AnalyserScore(
        trials=len(outcomes),
        healthy_trials=len(healthy),
        false_alarms=sum(bool(one.comparison.wrong) for one in healthy),
        median_s=round(statistics.median(took), 3) if took else None,
        worst_s=round(max(took), 3) if took else None,
    )


def score(
    *,
    ranks: int,
    trials: int,
    kinds: Sequence[str] = (),
    seeds: SeedSet = SeedSet.REPORT,
    noise: str = "builtin",
    in_flight: int = IN_FLIGHT,
    missing: float = MISSING,
    processes: int = 2,
    within_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Run a campaign. ``progress`` is told (done, total). For the other arguments see `plan_trials`, `run_trials`.

    Raises UsageError for a campaign that cannot be, and MegascopeError for noise that cannot be read.
    """
    began = time.perf_counter()
    planned = plan_trials(ranks=ranks, trials=trials, kinds=kinds, seeds=seeds, in_flight=in_flight, missing=missing)
    source, outcomes = load_noise(noise), []
    for outcome in run_trials(planned, noise=source, processes=processes, within_s=within_s):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(planned))
    outcomes.sort(key=lambda one: one.trial.seed)
    return add_up(outcomes, ranks=ranks, seeds=seeds, noise=noise, seconds=time.perf_counter() - began)


def add_up(outcomes: Sequence[Outcome], *, ranks: int, seeds: SeedSet, noise: str, seconds: float) -> Score:
    """The score of outcomes; kinds in the order of KINDS, those that were tried or claimed only."""
    healthy = [one for one in outcomes if one.trial.kind == HEALTHY]
    names = [str(kind) for kind in KINDS if kind != HEALTHY]
    claimed = {kind for one in outcomes for kind in _claims(one)}
    names += sorted(claimed - set(names))
    scores = (_of_kind(name, outcomes) for name in names)
    return Score(
        ranks=ranks,
        seeds=seeds,
        noise=noise,
        trials=len(outcomes),
        seconds=round(seconds, 1),
        kinds=tuple(one for one in scores if one.trials or one.claims),
        healthy_trials=len(healthy),
        false_alarms=sum(bool(one.comparison.wrong) for one in healthy),
        false_warnings=sum(one.warnings > 0 for one in healthy),
        outcomes=tuple(outcomes),
    )


def _claims(outcome: Outcome) -> tuple[str, ...]:
    compared = outcome.comparison
    return compared.right + compared.misnamed + compared.wrong


def _of_kind(kind: str, outcomes: Iterable[Outcome]) -> KindScore:
    outcomes = list(outcomes)
    own = [one for one in outcomes if one.trial.kind == kind]
    fine = [one for one in own if one.verdict in FINE_WORDS and kind != FaultKind.LOST_HEARTBEATS]
    return KindScore(
        kind=kind,
        trials=len(own),
        found=sum(one.comparison.found for one in own),
        located=sum(one.comparison.placed for one in own),
        called_fine=len(fine),
        claims=sum(_claims(one).count(kind) for one in outcomes),
        right=sum(one.comparison.right.count(kind) for one in outcomes),
        misnamed=sum(one.comparison.misnamed.count(kind) for one in outcomes),
        failed=sum(one.failure is not None for one in own),
        answers=Counter(one.answer for one in own if one.answer is not None),
    )


def as_json(result: Score) -> dict[str, Any]:
    """The object of `megascope score --json`."""
    return {
        "schema": 1,
        "ranks": result.ranks,
        "trials": result.trials,
        "seeds": str(result.seeds),
        "noise": result.noise,
        "seconds": result.seconds,
        "kinds": {one.kind: _kind_json(one) for one in result.kinds},
        "healthy_trials": result.healthy_trials,
        "false_alarms_in_healthy": result.false_alarms,
        "early_warnings_in_healthy": result.false_warnings,
        "analysers": {verb: _analyser_json(one) for verb, one in result.analysers().items()},
        "failures": [
            {"trial": describe(one.trial), "reason": one.failure} for one in result.outcomes if one.failure is not None
        ],
    }


def outcomes_json(result: Score) -> list[dict[str, Any]]:
    """What each trial came to, so that one can be looked at again: its fault, layout and seed make the job."""
    return [
        {
            "kind": one.trial.kind,
            "fault": one.trial.fault,
            "layout": dict(one.trial.layout),
            "chunks": one.trial.chunks,
            "seed": one.trial.seed,
            "on_rollups": one.trial.on_rollups,
            "verdict": one.verdict,
            "right": list(one.comparison.right),
            "misnamed": list(one.comparison.misnamed),
            "wrong": list(one.comparison.wrong),
            "found": one.comparison.found,
            "answer": None if one.answer is None else str(one.answer),
            "in_flight": one.trial.in_flight,
            "reads_results": one.trial.reads_results,
            "missing": one.trial.missing,
            "seconds": round(one.seconds, 2),
            "verdict_s": None if one.verdict_s is None else round(one.verdict_s, 3),
            "warnings": one.warnings,
        }
        for one in result.outcomes
    ]


def _analyser_json(one: AnalyserScore) -> dict[str, Any]:
    return {
        "trials": one.trials,
        "healthy_trials": one.healthy_trials,
        "false_alarms_in_healthy": one.false_alarms,
        "verdict_s": {"median": one.median_s, "worst": one.worst_s},
    }


def _kind_json(one: KindScore) -> dict[str, Any]:
    return {
        "precision": one.precision,
        "recall": one.recall,
        "trials": one.trials,
        "precision_of_place": one.precision_of_place,
        "recall_of_place": one.recall_of_place,
        "claims": one.claims,
        "called_fine": one.called_fine,
        "failed": one.failed,
        **{str(answer): one.share_of(answer) for answer in Answer},
    }


def describe(trial: Trial) -> str:
    """One trial in words: its fault, layout and seed."""
    layout = " x ".join(f"{axis} {size}" for axis, size in trial.layout)
    return f"{trial.fault or 'no fault'} in {layout}, seed {trial.seed}"
