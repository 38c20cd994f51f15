"""How often the analysers are right: precision and recall by kind over simulated jobs whose faults are known.

By default a short campaign: two trials of each kind in jobs of 64 ranks. ``--full``: 500 jobs of 512 ranks, and one of
each kind with 12,288. ``--hangs``: a hundred trials of each kind of hang, in jobs of 16, 512 and 12,288 ranks.
``--ranks`` and ``--trials`` choose another one, ``--minutes`` ends it early. Its seeds and magnitudes are others than
those that thresholds may be tuned on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from megascope.scoring.kinds import HANG_TRIALS, HEALTHY, KINDS, SeedSet
from megascope.scoring.scoring import as_json, score

from .machine import report

SHORT = ((64, 2 * len(KINDS)),)
FULL = ((512, 500), (12_288, len(KINDS)))
OF_HANGS = tuple(str(kind) for kind in KINDS if kind in HANG_TRIALS or kind == HEALTHY)
HANGS = tuple((ranks, each * len(OF_HANGS)) for ranks, each in ((16, 48), (512, 48), (12_288, 4)))


def campaign(ranks: int, trials: int, kinds: Sequence[str], minutes: float | None) -> dict[str, Any]:
    """One campaign on the seed set that is reported; no trial is begun after so many minutes."""
    within_s = None if minutes is None else minutes * 60
    return as_json(score(ranks=ranks, trials=trials, kinds=kinds, seeds=SeedSet.REPORT, within_s=within_s))


def main() -> None:
    """Run the campaigns and print one object; the keys on top are those of the first campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--minutes", type=float, help="of each campaign, at most")
    given = parser.parse_args()
    kinds = OF_HANGS if given.hangs else ()
    plan = FULL if given.full else HANGS if given.hangs else SHORT
    if given.ranks is not None or given.trials is not None:
        ranks, trials = (512 if given.ranks is None else given.ranks), given.trials
        plan = ((ranks, len(kinds or KINDS) if trials is None else trials),)
    results = [campaign(ranks, trials, kinds, given.minutes) for ranks, trials in plan]
    report("score", {**results[0], "campaigns": results[1:]})


if __name__ == "__main__":
    main()
