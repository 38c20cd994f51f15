"""What share of its time a large job trains, from measured recoveries and the published rate of interruptions.

A job of N GPUs is interrupted at random (exponentially) at the rate that a run of 16,384 GPUs had, per GPU. It saves
every so often, a write becomes usable after some time, and an interruption costs the recovery and the steps since the
newest usable checkpoint. ``--faults FILE`` is what ``benchmarks.faults`` printed; of several files the last that has a
trial counts. Its median recoveries of a killed rank (what dies) and of a stopped one (what hangs) are two ends, and
``interruptions`` weighs the trials by what interrupted that run. What a fleet takes longer to start than four ranks do
is not measured here: ``restart_s`` is tried at several values.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .interruptions import DAYS, GPUS, INTERRUPTIONS, NEEDED, by_cause, mean_recovery_s, saved_share
from .machine import report

FLEET = 12288
DAY_S = 86400.0

ENDS = {"dies": "kill", "hangs": "sigstop"}
"""The trials of ``benchmarks.faults`` that stand for both ends."""

TORCH_TIMEOUT_S = 600.0
"""After so long torch's process groups end a job that hangs, where nothing else does."""

EVERY_S = (300.0, 600.0, 1800.0, 3600.0)
RESTART_S = (0.0, 60.0, 300.0, 900.0)
WRITE_S = 60.0
TOLD_EVERY_S, TOLD_RESTART_S = 300.0, 60.0
"""The case that the one sentence is of."""


def rate_per_s(gpus: int) -> float:
    """Interruptions a second of a job of so many GPUs."""
    return INTERRUPTIONS / (DAYS * DAY_S) * gpus / GPUS


def effective_share(*, rate: float, every_s: float, stall_s: float, recovery_s: float, saved: float = 0.0) -> float:
    """Useful time over all time, of work saved every ``every_s`` with a stall of ``stall_s`` each.

    Expected time of a piece of work under exponential interruptions, of which each costs ``recovery_s`` (on average),
    in which there is none, and the piece so far (after Daly, "A higher order estimate of the optimum checkpoint
    interval", 2006). A share ``saved`` of them costs ``recovery_s`` alone.
    """
    losing = rate * (1 - saved)
    piece_s = every_s + stall_s
    worked_s = math.expm1(losing * piece_s) / losing if losing else piece_s
    return every_s / (worked_s * (1 + rate * recovery_s))


def rows(measured: Mapping[str, float], *, gpus: int, stall_s: float, write_s: float) -> Iterator[dict[str, Any]]:
    """One row for each kind of interruption, interval between checkpoints and time of a restart."""
    waits = {"megascope": 0.0, "torch's timeout": TORCH_TIMEOUT_S}
    for (kind, trial), every_s, restart_s, (who, wait_s) in itertools.product(
        ENDS.items(), EVERY_S, RESTART_S, waits.items()
    ):
        if kind == "dies" and wait_s:
            continue  # an exit is seen at once by anybody
        # The write of the newest checkpoint was not over yet: what was done meanwhile is done again.
        recovery_s = (wait_s + measured[ENDS["dies"]] if wait_s else measured[trial]) + restart_s + write_s
        share = effective_share(rate=rate_per_s(gpus), every_s=every_s, stall_s=stall_s, recovery_s=recovery_s)
        yield {
            "interruption": kind,
            "noticed_by": who,
            "every_s": every_s,
            "restart_s": restart_s,
            "recovery_s": round(recovery_s, 1),
            "effective": round(share, 4),
        }


def mixed(
    measured: Mapping[str, float], *, gpus: int, stall_s: float, write_s: float, every_s: float, restart_s: float
) -> dict[str, Any]:
    """The share of a job that is interrupted by what interrupted that run, and as often.

    Where the ranks save before they stop, that write is waited for: it costs as much as one that is undone.
    """
    recovery_s = mean_recovery_s(measured) + restart_s + write_s
    rate = rate_per_s(gpus)
    share = effective_share(rate=rate, every_s=every_s, stall_s=stall_s, recovery_s=recovery_s, saved=saved_share())
    return {
        "every_s": every_s,
        "restart_s": restart_s,
        "recovery_s": round(recovery_s, 1),
        "effective": round(share, 4),
    }


def told(answer: Mapping[str, Any], gpus: int) -> str:
    """That answer in one sentence."""
    share, minutes, restart_s = 100 * answer["effective"], answer["every_s"] / 60, answer["restart_s"]
    return (
        f"{share:.1f} % at {gpus:,} GPUs with a checkpoint every {minutes:g} minutes and {restart_s:g} s to start again"
    )


def measured_recoveries(paths: Sequence[Path], needed: Collection[str]) -> dict[str, float]:
    """Median recovery, in seconds, of the trials that are needed; SystemExit where the files do not have them.

    The last file that has a trial counts, also where nothing recovered in it.
    """
    trials: dict[str, Any] = {}
    for path in paths:
        try:
            trials |= {
                name: trial["median_recovery_s"] for name, trial in json.loads(path.read_text())["by_trial"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path} has no trials of faults ({error!r}): give the output of "
                             "`python -m benchmarks.faults`.") from error  # fmt: skip
    missing = sorted(name for name in needed if trials.get(name) is None)
    if missing:
        raise SystemExit(f"No trial of {', '.join(missing)} recovered in {', '.join(map(str, paths))}: run `python -m "
                         f"benchmarks.faults --only {' '.join(missing)}` and give its output too.")  # fmt: skip
    return {name: trials[name] for name in sorted(needed)}


def settings_of(paths: Sequence[Path]) -> str | None:
    """Under which settings the recoveries were measured, with self-checks or without; None where that is not told.

    SystemExit where files differ in it.
    """
    found = set()
    for path in paths:
        settings = json.loads(path.read_text()).get("settings")
        found.add(settings.get("name") if isinstance(settings, dict) else None)
    if len(found) > 1:
        raise SystemExit(
            f"{', '.join(map(str, paths))} were measured under different settings: give files of the same."
        )
    return found.pop()


def main() -> None:
    """Print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=Path, nargs="+", required=True, help="Objects that benchmarks.faults printed.")
    parser.add_argument("--gpus", type=int, default=FLEET)
    parser.add_argument("--stall-s", type=float, required=True, help="What a checkpoint holds training up for.")
    parser.add_argument("--write-s", type=float, default=WRITE_S, help="Until a checkpoint that was taken can be used.")
    given = parser.parse_args()
    measured = measured_recoveries(given.faults, NEEDED | set(ENDS.values()))
    job = {"gpus": given.gpus, "stall_s": given.stall_s, "write_s": given.write_s}
    answer = mixed(measured, **job, every_s=TOLD_EVERY_S, restart_s=TOLD_RESTART_S)
    report("effective_time", {
        "answer": told(answer, given.gpus),
        **job,
        "hours_between_interruptions": round(1 / rate_per_s(given.gpus) / 3600, 2),
        "measured_recovery_s": measured,
        "faults_settings": settings_of(given.faults),
        "mean_recovery_s": round(mean_recovery_s(measured), 2),
        "by_cause": list(by_cause(measured)),
        "mixed": [
            mixed(measured, **job, every_s=every_s, restart_s=restart_s)
            for every_s, restart_s in itertools.product(EVERY_S, RESTART_S)
        ],
        "rows": list(rows(measured, **job)),
    })  # fmt: skip


if __name__ == "__main__":
    main()
