"""The coordinator's side: gives the orders, collects answers, has what is out of line measured again, and judges."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...collectors.verdicts import Abstention
from ...profiler.topology import Topology
from .blame import blame, merge_pairs
from .check import Check, Effort
from .judge import find_beyond, find_outliers, judged_ranks, not_judged, summarise, suspects
from .measurements import Culprit, Failure, Kind, Measurement, Member, Outcome, Reason, Report, Status
from .meeting import GRACE_S, Meeting, Order
from .plan import Cluster, Round, Team, without
from .ports import Ports, find_growth

Progress = Callable[[str, int, int], None]
"""Told the check that begins, how many are done and how many there are."""


class Coordinator:
    """Runs checks over the ranks that answer; a rank that does not is named, and left out from then on."""

    def __init__(self, meeting: Meeting, cluster: Cluster, checks: Sequence[Check], effort: Effort) -> None:
        self.cluster, self.effort = cluster, effort
        self._meeting, self._checks = meeting, checks
        self._number = 0
        self._absent: set[int] = set()
        self._metrics = {(check.name, metric.name): metric for check in checks for metric in check.metrics}
        self.measurements: list[Measurement] = []
        self.failures: list[Failure] = []
        self.skipped: list[Abstention] = []
        self.seconds: dict[str, float] = {}

    def run(
        self, floors: Mapping[str, float], progress: Progress | None = None
    ) -> tuple[list[Culprit], list[Abstention], list[str]]:
        """Run all checks. Returns accusations, what was not judged, and notes."""
        ports = [index for index, check in enumerate(self._checks) if isinstance(check, Ports)]
        before = self._facts(ports[0]) if ports else {}
        others = [index for index in range(len(self._checks)) if index not in ports]
        for done, index in enumerate(others):
            check = self._checks[index]
            if progress is not None:
                progress(check.name, done, len(others))
            began = time.monotonic()
            self._run_check(index, check)
            self.seconds[check.name] = round(time.monotonic() - began, 3)
        after = self._facts(ports[0]) if ports else {}
        self._meeting.give(Order(self._number, None))
        self._meeting.wait_until_left(rank for rank in self.cluster.members if rank not in self._absent)
        culprits = [_of_failure(failure) for failure in self._merged()]
        culprits += find_outliers(self.measurements, self._metrics, self.cluster.device)
        culprits += find_beyond(self.measurements, self._metrics, floors)
        grown, notes = find_growth(before, after, self.cluster)
        return culprits + grown, not_judged(self.measurements, self._metrics, floors), notes

    def leave_out(self, ranks: Sequence[int]) -> None:
        """Name ranks that never came, and do without them."""
        self._absent.update(ranks)
        for rank in ranks:
            self._fail("start", Status.MISSING, (rank,), "it never came to the meeting of the ranks")

    def _merged(self) -> list[Failure]:
        found: list[Failure] = []
        for name in dict.fromkeys(one.check for one in self.failures):
            good = [one.ranks for one in self.measurements if one.check == name]
            found += merge_pairs([one for one in self.failures if one.check == name], good)
        return found

    def verdict(self, culprits: Sequence[Culprit], floors: Mapping[str, float]) -> Outcome:
        """Healthy only if every rank was held against others, or against a floor, and nobody was found."""
        if culprits:
            return Outcome.FINDINGS
        judged = judged_ranks(self.measurements, self._metrics, floors)
        return Outcome.HEALTHY if all(judged[rank] for rank in self.cluster.members) else Outcome.INSUFFICIENT

    def _facts(self, index: int) -> dict[int, dict[str, int]]:
        answers = self._order(index, self._checks[index].rounds(self.cluster)[0])
        return {rank: one["value"]["facts"] for rank, one in answers.items() if one["status"] == Status.OK}

    def _run_check(self, index: int, check: Check) -> None:
        reason = check.why_not(self.cluster, self.effort)
        if reason is not None:
            self.skipped.append(Abstention(check.name, reason))
            return
        own: dict[tuple[str, Team], Measurement] = {}
        self._rounds(index, check, check.rounds(self.cluster), own)
        bad = {one.measurement.ranks for one in suspects(own.values(), self._metrics, self.cluster.device)}
        if bad:  # once more, alone: what other work disturbed is better now, what is broken is not
            teams = [team for teams in check.rounds(self.cluster) for team in teams if self._holds(check, team, bad)]
            self._rounds(index, check, [[team] for team in teams[:64]], own)
        self.measurements += own.values()

    @staticmethod
    def _holds(check: Check, team: Team, bad: set[Team]) -> bool:
        return team in bad if check.is_of_team else any((rank,) in bad for rank in team)

    def _rounds(self, index: int, check: Check, rounds: list[Round], own: dict[tuple[str, Team], Measurement]) -> None:
        least = 2 if check.needs_group else 1
        for planned in rounds:
            for teams in without([planned], self._absent, least):
                answers = self._order(index, teams)
                for team in teams:
                    self._take(check, team, answers, own)

    def _order(self, index: int, teams: Round) -> dict[int, dict[str, Any]]:
        """Have one round done; who gives no answer in time is absent from then on."""
        ranks = [rank for team in teams for rank in team if rank not in self._absent]
        self._meeting.give(Order(self._number, index, tuple(teams)))
        answers = self._meeting.answers(self._number, ranks, self.effort.timeout_s + GRACE_S)
        self._number += 1
        for rank in sorted(set(ranks) - answers.keys()):
            self._absent.add(rank)
            message = "it did not answer in time, and was left out of all later checks"
            self._fail(self._checks[index].name, Status.MISSING, (rank,), message)
        return answers

    def _take(
        self, check: Check, team: Team, answers: Mapping[int, dict[str, Any]], own: dict[tuple[str, Team], Measurement]
    ) -> None:
        """Turn the answers of a team into measurements, or into a failure with the ranks to blame."""
        told = {rank: answers[rank] for rank in team if rank in answers}
        bad = {rank: one for rank, one in told.items() if one["status"] != Status.OK}
        if bad and (check.needs_group or len(team) == 1):
            if len(told) == len(team):  # else those that are absent explain it, and are named already
                status, ranks, message = blame(told, team)
                self._fail(check.name, status, ranks, message, tuple(sorted(set(team) - set(ranks))))
            return
        if check.depends_on_first and (team[0] in bad or team[0] not in told):
            bad = {rank: one for rank, one in bad.items() if rank == team[0]}
        for rank, one in bad.items():
            self._fail(check.name, Status(one["status"]), (rank,), one["message"])
        good = {rank: one["value"] for rank, one in told.items() if one["status"] == Status.OK}
        for metric in check.metrics:
            values = {rank: one["values"][metric.name] for rank, one in good.items() if metric.name in one["values"]}
            worst = min if metric.higher_is_better else max
            of = {team: worst(values, key=values.__getitem__)} if check.is_of_team and values else {}
            for ranks, rank in (of or {(rank,): rank for rank in values}).items():
                found = Measurement(
                    check=check.name, metric=metric.name, unit=metric.unit, ranks=ranks,
                    hosts=self.cluster.hosts_of(ranks), value=values[rank],
                    peers=good[rank]["kind"] or check.peers(ranks, self.cluster),
                    uncertainty=good[rank]["uncertainty"].get(metric.name, 0.0),
                )  # fmt: skip
                old = own.get((metric.name, ranks))
                if old is None or (found.value > old.value) == metric.higher_is_better:
                    own[metric.name, ranks] = found

    def _fail(self, check: str, status: Status, ranks: Team, message: str, waiting: Team = ()) -> None:
        hosts = self.cluster.hosts_of(ranks)
        self.failures.append(
            Failure(check=check, status=status, ranks=ranks, hosts=hosts, message=message, waiting=waiting)
        )


def _of_failure(failure: Failure) -> Culprit:
    ranks = failure.ranks
    kind = Kind.RANK if len(ranks) == 1 else Kind.LINK if len(ranks) == 2 else Kind.GROUP
    places = " and ".join(dict.fromkeys(failure.hosts))
    named = f"Rank {ranks[0]} on {places}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} ({places})"
    waiting = f"; {len(failure.waiting)} other ranks waited" if failure.waiting else ""
    return Culprit(
        kind=kind, reason=Reason(str(failure.status)), check=failure.check, metric=None, ranks=ranks,
        hosts=failure.hosts, value=None, peers=None, unit=None,
        statement=f"{named}: {failure.check} {failure.status}: {failure.message}{waiting}.",
    )  # fmt: skip


def coordinate(
    meeting: Meeting,
    world_size: int,
    topology: Topology,
    chunks: int,
    checks: Sequence[Check],
    effort: Effort,
    *,
    floors: Mapping[str, float],
    arrive_s: float,
    progress: Progress | None = None,
) -> Report:
    """Run a whole preflight and judge it; ranks that never arrive are named, and the rest is checked without them."""
    began, started_ns = time.monotonic(), time.time_ns()
    members = meeting.members(world_size, arrive_s)
    meeting.introduce(members.values())
    absent = sorted(set(range(world_size)) - members.keys())
    placed = members | {rank: Member(rank=rank, host="unknown", local_rank=rank) for rank in absent}
    meeting_cluster = Cluster(placed, topology, chunks)
    coordinator = Coordinator(meeting, meeting_cluster, checks, effort)
    coordinator.leave_out(absent)
    culprits, abstained, notes = coordinator.run(floors, progress)
    return Report(
        verdict=coordinator.verdict(culprits, floors), started_ns=started_ns,
        seconds=round(time.monotonic() - began, 3), quick=effort.quick, world_size=world_size,
        hosts=tuple(meeting_cluster.hosts()), layout=dict(topology.axes), device=meeting_cluster.device,
        culprits=tuple(culprits), abstained=tuple(abstained), skipped=tuple(coordinator.skipped), notes=tuple(notes),
        summaries=tuple(summarise(coordinator.measurements)), measurements=tuple(coordinator.measurements),
        seconds_by_check=coordinator.seconds,
    )  # fmt: skip
