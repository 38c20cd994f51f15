"""Whether the verdict is right on real trainings here: each slow-fault switch, and trainings without a fault.

Eight processes at tp2 pp2 dp2 and at pp4 dp2. A trial is right if it names the rank (or link) that was slowed and no
other; one without a fault if it names nobody. Slow-downs too slight to be named here are tried and reported, and count
only in that nobody else may be named. ``--short``: one trial of each kind in one layout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .machine import report

CONFIG = """
[model]
layers = 8
width = 96
heads = 4
sequence = 128
[parallel]
{parallel}
dp = 2
bucket_bytes = 262144
[train]
steps = {steps}
batch = 16
microbatches = 4
log_every = 1000
[data]
limit_bytes = 1000000
"""

LAYOUTS = {"tp2 pp2 dp2": "tp = 2\npp = 2\nchunks = 2", "pp4 dp2": "pp = 4"}

FIRST_STEP = 20

SLIGHTLY, SINCE, LONG = 1.1, 70, 200
"""A factor that shows on shared cores only against a rank's own past, from which step on it acts, and of how many."""

SLOWED = 5

LINKS = {"tp2 pp2 dp2": (1, 5), "pp4 dp2": (1, 3)}
"""Ranks of neighbouring stages, which send to each other."""

CARD, CARD_MS = 1, {"tp2 pp2 dp2": 5, "pp4 dp2": 30}
"""A rank whose card delays all that it exchanges, and by how much a message: over tp there are a hundred in a step."""

HEALTHY_RUNS = 10

LIMIT_S = 900


@dataclass(frozen=True, slots=True)
class Trial:
    """One training. ``fault`` is what `megascope train --fault` takes, "" for none; ``blamed`` who may be named;
    ``steps`` 0: as many as were asked for; ``required``: whether it has to be named, or only nobody else may be."""

    layout: str
    fault: str
    blamed: tuple[int, ...]
    steps: int = 0
    required: bool = True


def plan(short: bool) -> Iterator[Trial]:
    """The trials; the two kinds of slowness by turns with trainings without a fault, as the machine's load changes."""
    layouts = list(LAYOUTS)[: 1 if short else None]
    for layout in layouts:
        yield Trial(layout, f"slow rank={SLOWED} factor={SLIGHTLY} from={SINCE}", (SLOWED,), LONG)
        yield Trial(layout, "", (), LONG)
        yield Trial(layout, f"slow rank={SLOWED} factor=1.5 from={FIRST_STEP}", (SLOWED,))
        yield Trial(layout, "", ())
        for segment in () if short else ("forward", "backward"):
            yield Trial(layout, f"slow rank={SLOWED} factor=1.5 segment={segment} from={FIRST_STEP}", (SLOWED,))
            yield Trial(layout, "", ())
        link = LINKS[layout]
        yield Trial(layout, f"slow-link link={link[0]}>{link[1]} delay_ms=30 from={FIRST_STEP}", link)
        yield Trial(layout, f"slow-nic rank={CARD} delay_ms={CARD_MS[layout]} from={FIRST_STEP}", (CARD,))
        if not short:
            yield from _slight(layout)
    for number in range(0 if short else HEALTHY_RUNS - 4 * len(layouts)):
        yield Trial(layouts[number % len(layouts)], "", ())


def _slight(layout: str) -> Iterator[Trial]:
    """Slow-downs that nothing here resolves: too early for a past of its own, or of a part of the work alone."""
    slow = f"slow rank={SLOWED} factor={SLIGHTLY}"
    yield Trial(layout, f"{slow} from={FIRST_STEP}", (SLOWED,), required=False)
    for segment in ("forward", "backward"):
        yield Trial(layout, f"{slow} segment={segment} from={SINCE}", (SLOWED,), LONG, required=False)


def run(trial: Trial, steps: int, folder: Path) -> dict[str, Any]:
    """Train, ask for the verdict, and hold it against what was put in."""
    config = folder / "config.toml"
    config.write_text(CONFIG.format(parallel=LAYOUTS[trial.layout], steps=trial.steps or steps))
    store = folder / "store"
    arguments = ["train", str(config), "--record.store", str(store), "--record.run", "trial"]
    began = time.monotonic()
    _megascope(*arguments, *(["--fault", trial.fault] if trial.fault else []))
    trained = time.monotonic()
    verdict = json.loads(_megascope("stragglers", str(store), "--json"))
    named = [tuple(one["ranks"]) for one in verdict["culprits"] if one["kind"] in ("rank", "host", "link", "group")]
    return {
        **asdict(trial),
        "verdict": verdict["verdict"],
        "named": named,
        "right": _is_right(trial, named, verdict["verdict"]),
        "ratio": verdict["culprits"][0]["ratio"] if named else None,
        "visible_ratio": verdict["visible_ratio"],
        "warned": sorted({one["rank"] for one in verdict["warnings"]}),
        "abstained": sorted({one["signal"] for one in verdict["abstained"]}),
        "train_s": round(trained - began, 1),
        "verdict_s": round(time.monotonic() - trained, 1),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def _is_right(trial: Trial, named: list[tuple[int, ...]], verdict: str) -> bool:
    if not trial.fault:
        return not named
    return verdict == "findings" and bool(named) and all(set(ranks) <= set(trial.blamed) for ranks in named)


def _megascope(*arguments: str) -> str:
    command = [sys.executable, "-m", "megascope", *arguments]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    """Run the trials one after another and print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    given = parser.parse_args()
    results = []
    for trial in plan(given.short):
        with tempfile.TemporaryDirectory(prefix="megascope-trainings-") as folder:
            results.append(run(trial, given.steps, Path(folder)))
        sys.stderr.write(f"{json.dumps(results[-1])}\n")
    report("trainer_stragglers", {**summary(results), "results": results})


def summary(results: Sequence[dict[str, Any]]) -> dict[str, int]:
    """What all trials came to; ``trials`` and ``right`` are of those that have to be named."""
    with_fault, healthy = ([one for one in results if bool(one["fault"]) == has] for has in (True, False))
    required, slight = ([one for one in with_fault if one["required"] == is_so] for is_so in (True, False))
    return {
        "trials": len(required),
        "right": sum(one["right"] for one in required),
        "named_others": sum(bool(set().union(*one["named"]) - set(one["blamed"])) for one in with_fault),
        "not_required": len(slight),
        "not_required_named": sum(one["right"] for one in slight),
        "healthy": len(healthy),
        "false_alarms_in_healthy": sum(not one["right"] for one in healthy),
        "warned_in_healthy": sum(bool(one["warned"]) for one in healthy),
    }


if __name__ == "__main__":
    main()
