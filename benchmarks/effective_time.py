"""What share of its time a large job trains, from measured recoveries and the published rate of interruptions.

A job of N GPUs is interrupted at random (exponentially) at the rate that a run of 16,384 GPUs had, per GPU. It saves
every so often, a write becomes usable after some time, and an interruption costs the recovery and the steps since the
newest usable checkpoint. ``--faults FILE`` is what ``benchmarks.faults`` printed: its median recoveries of a killed
rank (what dies) and of a stopped one (what hangs) are the two ends between which real interruptions lie. What a fleet
takes longer to start than four ranks do is not measured here: ``restart_s`` is tried at several values.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .machine import report

INTERRUPTIONS, DAYS, GPUS = 419, 54, 16384
"""Unexpected interruptions in so many days on so many GPUs (The Llama 3 Herd of Models, arXiv:2407.21783, table 5)."""

FLEET = 12288
DAY_S = 86400.0

ENDS = {"dies": "kill", "hangs": "sigstop"}
"""The trials of ``benchmarks.faults`` that stand for both ends."""

TORCH_TIMEOUT_S = 600.0
"""After so long torch's process groups end a job that hangs, where nothing else does."""

EVERY_S = (300.0, 600.0, 1800.0, 3600.0)
RESTART_S = (0.0, 60.0, 300.0, 900.0)
WRITE_S = 60.0


def rate_per_s(gpus: int) -> float:
    """Interruptions a second of a job of so many GPUs."""
    return INTERRUPTIONS / (DAYS * DAY_S) * gpus / GPUS


def effective_share(*, rate: float, every_s: float, stall_s: float, recovery_s: float) -> float:
    """Useful time over all time, of work saved every ``every_s`` with a stall of ``stall_s`` each.

    Expected time of a piece of work under exponential interruptions, of which each costs ``recovery_s``, in which there
    is none, and the piece so far (after Daly, "A higher order estimate of the optimum checkpoint interval", 2006).
    """
    expected_s = (1 / rate + recovery_s) * math.expm1(rate * (every_s + stall_s))
    return every_s / expected_s


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


def measured_recoveries(path: Path) -> dict[str, float]:
    """Median recovery, in seconds, of the trials that are needed; SystemExit where the file does not have them."""
    try:
        trials = json.loads(path.read_text())["by_trial"]
        found = {name: trials[name]["median_recovery_s"] for name in ENDS.values()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} has no recoveries of {' and '.join(ENDS.values())} ({error!r}): give the output of "
                         "`python -m benchmarks.faults`.") from error  # fmt: skip
    if None in found.values():
        raise SystemExit(f"{path} has no trial of {' or '.join(ENDS.values())} that recovered: repeat them.")
    return found


def settings_of(path: Path) -> str | None:
    """Under which settings the recoveries were measured, with self-checks or without; None where that is not told."""
    settings = json.loads(path.read_text()).get("settings")
    return settings.get("name") if isinstance(settings, dict) else None


def main() -> None:
    """Print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=Path, required=True, help="The object that benchmarks.faults printed.")
    parser.add_argument("--gpus", type=int, default=FLEET)
    parser.add_argument("--stall-s", type=float, required=True, help="What a checkpoint holds training up for.")
    parser.add_argument("--write-s", type=float, default=WRITE_S, help="Until a checkpoint that was taken can be used.")
    given = parser.parse_args()
    measured = measured_recoveries(given.faults)
    found = list(rows(measured, gpus=given.gpus, stall_s=given.stall_s, write_s=given.write_s))
    report("effective_time", {
        "gpus": given.gpus,
        "hours_between_interruptions": round(1 / rate_per_s(given.gpus) / 3600, 2),
        "measured_recovery_s": measured,
        "faults_settings": settings_of(given.faults),
        "stall_s": given.stall_s,
        "write_s": given.write_s,
        "rows": found,
    })  # fmt: skip


if __name__ == "__main__":
    main()
