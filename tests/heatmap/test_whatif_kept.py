"""What-if that is kept from one look at a growing store to the next: the same result as of a first look, less read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.matrix import load_placement
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.whatif.finding import find_whatif
from megascope.heatmap.whatif.kept import MOST, KeptReplay, KeptReplays
from megascope.heatmap.whatif.reasons import CannotReplayError
from megascope.heatmap.whatif.recording import load_recording
from megascope.heatmap.whatif.result import WhatIf
from megascope.heatmap.whatif.schedule import load_schedule, scheduled_names
from support.small_job import ALL, COSTS, job_of, open_simulated


@dataclass(slots=True)
class PartOf:
    """A store of which some spans have come so far."""

    store: Store
    come: str

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        """Rows of the answer."""
        return self.store.query(
            sql.replace("FROM events", f"FROM (SELECT * FROM events WHERE {self.come}) AS events"), parameters, attempt
        )


def same(found: WhatIf, wanted: WhatIf) -> None:
    for name in ("slowdown", "m_w", "m_s", "step_s", "ideal_s", "recorded_s"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-9, abs=1e-9)
    assert (found.steps, found.step_count, found.notes) == (wanted.steps, wanted.step_count, wanted.notes)
    parts, others = ({(one.part, one.name): one.recovered for one in each.contributions} for each in (found, wanted))
    assert parts == pytest.approx(others, abs=1e-6)


LOOKS = (
    ("step <= 5", 5),
    ("step <= 5", 0),
    ("step <= 9", 4),
    ("step <= 12 AND NOT (step = 12 AND rank > 2)", 3),  # the newest step has come of some ranks
    ("step <= 14 AND NOT (step = 14 AND segment % 2 = 0)", 3),  # and all of the others, but not of the newest
    ("step <= 24", 11),
    ("step BETWEEN 4 AND 24", 0),  # the oldest were deleted
)


def test_each_look_gives_what_a_first_look_gives_and_reads_only_what_is_new(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=COSTS), ALL)
    kept = KeptReplay()
    with store:
        placement, steps = load_placement(store, attempt), np.arange(1, 25)
        for come, read in LOOKS:
            part = PartOf(store, come)
            recorded = part.query("SELECT DISTINCT step FROM events", attempt=attempt)["step"].to_numpy()
            now = np.intersect1d(recorded, steps)
            same(
                find_whatif(part, attempt, placement, now, kept=kept),
                find_whatif(part, attempt, placement, now),
            )
            assert kept.steps_read == read, come


def test_of_a_growing_job_the_steps_that_were_chosen_stay_chosen(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=COSTS), ALL)
    kept, read, chosen = KeptReplay(), [], []
    with store:
        placement = load_placement(store, attempt)
        for last in (8, 12, 13, 24):
            part, steps = PartOf(store, f"step BETWEEN 1 AND {last}"), np.arange(1, last + 1)
            spans = int(part.query("SELECT count(*) AS n FROM events", attempt=attempt)["n"][0].as_py())
            found = find_whatif(part, attempt, placement, steps, max_spans=7 * spans // last, kept=kept)
            read.append(kept.steps_read)
            chosen.append((found.step_count, found.steps))
    assert chosen == [(4, (2, 8)), (6, (2, 12)), (6, (2, 12)), (6, (4, 24))]
    assert read == [4, 2, 0, 3]


def test_what_cannot_be_added_is_read_anew(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=COSTS), ALL)
    kept = KeptReplay()
    with store:
        placement, steps = load_placement(store, attempt), np.arange(1, 25)
        first = find_whatif(store, attempt, placement, steps[:10], kept=kept)
        with pytest.raises(CannotReplayError, match="has those of 4"):
            find_whatif(PartOf(store, "rank < 4"), attempt, placement, steps, kept=kept)
        same(find_whatif(store, attempt, placement, steps[:10], kept=kept), first)
        assert kept.steps_read == 10
        moved = replace(placement, hosts=tuple("elsewhere" for _ in placement.hosts))  # they have one clock now
        same(
            find_whatif(store, attempt, moved, steps, kept=kept),
            find_whatif(store, attempt, moved, steps),
        )


def test_what_is_kept_is_bounded_as_a_first_look_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=COSTS), ALL)
    kept = KeptReplay()
    with store:
        placement, steps = load_placement(store, attempt), np.arange(1, 25)
        names = scheduled_names(load_schedule(store, attempt))
        fits = load_recording(store, attempt, placement, steps[:16].tolist(), names).start.size
        monkeypatch.setattr("megascope.heatmap.whatif.recording.MAX_CELLS", fits)
        first = find_whatif(store, attempt, placement, steps[:8], kept=kept)
        same(
            find_whatif(store, attempt, placement, steps[:16], kept=kept),
            find_whatif(store, attempt, placement, steps[:16]),
        )
        assert kept.steps_read == 8
        for looked in (None, kept, kept):
            with pytest.raises(CannotReplayError, match="too little in common"):
                find_whatif(store, attempt, placement, steps, kept=looked)
        same(find_whatif(store, attempt, placement, steps[:8], kept=kept), first)
        assert kept.steps_read == 8


def test_a_verdict_on_all_steps_keeps_its_replay_for_the_next(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=COSTS), ALL)
    replays = KeptReplays()
    with store:
        first = find_stragglers(store, attempt, replays=replays)
        read = replays.of(attempt).steps_read
        assert first.whatif is not None
        assert read >= first.whatif.step_count > 0
        find_stragglers(store, attempt, steps=(3, 9), replays=replays)
        assert replays.of(attempt).steps_read == read  # other steps are looked at by themselves
        again = find_stragglers(store, attempt, replays=replays)
    assert replays.of(attempt).steps_read == 0
    assert again.whatif == first.whatif


def test_few_attempts_are_kept() -> None:
    replays = KeptReplays()
    found = [replays.of(Attempt("run", number)) for number in range(MOST + 1)]
    assert replays.of(Attempt("run", MOST)) is found[MOST]
    assert replays.of(Attempt("run", 0)) is not found[0]
