"""Whether a supervised training survives faults by itself: of its processes, hosts, memory, storage, links and agents.

Four ranks on two simulated hosts, and a spare; where a network card is slow, five on five hosts. Each trial breaks one
thing (one trial two, one after the other) and is left alone until the run ends; its losses are held against those of an
undisturbed run, bit by bit: where batches were passed over, of one that passes over the same ones. The
supervisor has the settings that `megascope supervise` has without flags, self-checks included; ``--short`` leaves these
out and is less patient. ``--only`` runs the trials whose name has one of the given words, ``--repeat`` each so many
times, ``--resume FILE`` keeps results as they come and goes on from there. The first repetition of each is always the
same (step 24, one rank); in further ones the step, the rank and, where it may be any, the segment are drawn, with
``--seed N`` in the first one too. Each result tells the fault that was put in.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from megascope.trainer.supervisor.journal import SIGN

from .fault_jobs import CannotBeMadeError, Ran, remove, run_trial
from .fault_settings import PRODUCT, SHORT, Settings
from .fault_summary import parts_of, summary
from .fault_trials import HALT, STEPS, Trial, plan
from .machine import commit, report

TRIES = 2
"""So often a trial is made whose fault does not come to act, as the training was over before."""


def judged(trial: Trial, ran: Ran, losses: Mapping[int, float]) -> dict[str, Any]:
    """One trial's result. ``first_step``, ``last_step``: the last one done before the first and the last incident."""
    told = ran.report
    incidents = [one for one in told["incidents"] if one["decision"] is not None]
    named, kinds = _named(trial, told["incidents"], incidents)
    fenced = set(told["fenced"])
    halts = trial.ends == HALT
    same = all(losses.get(step) == loss for step, loss in ran.losses.items())
    complete = halts or len(ran.losses) == STEPS[trial.layout]
    recovered = told["outcome"] == ("stopped" if halts else "finished") and bool(incidents) >= trial.disturbs
    passed_over = told.get("skipped_batches", [])
    times = [one["recovery_s"] for one in incidents if one.get("recovery_s") is not None]
    return {
        "name": trial.name,
        "fault": trial.put_in,
        "acted": ran.fault_ns is not None or _told_of_loss(trial, incidents),
        "recovered": recovered and bool(passed_over) == trial.rolls_back,
        "culprit_right": _culprit_right(trial, incidents, named, fenced),
        "kind_right": bool(kinds) and kinds <= trial.kinds if trial.kinds else None,
        "false_fences": len(fenced - trial.fenced),
        "loss_identical": same and complete,
        "lost_spans": ran.lost["spans"],
        "lost_steps": None if trial.lost else ran.lost["steps"],  # a host that goes takes what it had not yet written
        "recovery_s": max(times) if times and trial.disturbs else None,
        **parts_of(incidents),
        "first_step": incidents[0].get("step") if incidents else None,
        "last_step": incidents[-1].get("step") if incidents else None,
        "named": sorted(named),
        "kinds": sorted(kinds),
        "fenced": sorted(fenced),
        "passed_over": [passed_over[0], passed_over[-1]] if passed_over else None,
        "decisions": [f"{one['kind']}: {one['decision']}" for one in incidents],
        "reason": told["reason"],
        "goodput": (told["goodput"] or {}).get("goodput"),
    }


def _named(trial: Trial, everything: list[Any], incidents: list[Any]) -> tuple[set[int], set[str]]:
    """The ranks that verdicts named and the kinds that they gave; of what disturbs nobody, or is nobody's doing, those
    that signs told of."""
    if trial.disturbs and not trial.rolls_back:
        culprits = [culprit for one in incidents for culprit in one["culprits"]]
        return {rank for one in culprits for rank in one["ranks"]}, {one["kind"] for one in culprits}
    signs = [one for one in everything if one["kind"].removeprefix(SIGN) in trial.kinds]
    return {rank for one in signs for rank in one["ranks"]}, {one["kind"].removeprefix(SIGN) for one in signs}


def _culprit_right(trial: Trial, incidents: list[Any], named: set[int], fenced: set[str]) -> bool | None:
    """Whether the right ones were named; None where there is no culprit among ranks and hosts to name."""
    if trial.lost:
        return _told_of_loss(trial, incidents) and not fenced
    if not trial.ranks:
        return fenced == trial.fenced if trial.fenced else None
    return trial.ranks <= named <= trial.ranks | trial.also


def _told_of_loss(trial: Trial, incidents: list[Any]) -> bool:
    """Whether the host that was to go is said to be gone; what it had recorded of its own fault went with it."""
    return bool(trial.lost) and any(trial.lost in (one["why"] or "") for one in incidents)


def tried(
    trial: Trial, losses: Mapping[int, float], keep: Path | None, settings: Settings
) -> tuple[dict[str, Any], Ran | None]:
    """Run one trial; one that failed as a whole did not recover, one that cannot be made here is none."""
    folder = Path(tempfile.mkdtemp(prefix="megascope-faults-")) if keep is None else keep / trial.name
    remove(folder)
    folder.mkdir(parents=True)
    try:
        ran = run_trial(trial, folder, _say, settings)
        if passed_over := tuple(ran.report["skipped_batches"]):
            losses = undisturbed(trial.layout, keep, settings, passed_over)
        return judged(trial, ran, losses), ran
    except CannotBeMadeError as error:
        return {
            "name": trial.name,
            "fault": trial.put_in,
            "acted": False,
            "left_out": str(error),
            "recovery_s": None,
        }, None
    except RuntimeError as error:
        failed = {"recovered": False, "culprit_right": False, "false_fences": 0, "loss_identical": False}
        failed["kind_right"] = False
        return {"name": trial.name, "fault": trial.put_in, **failed, "recovery_s": None, "error": str(error)}, None
    finally:
        if keep is None:
            remove(folder)


def undisturbed(layout: str, keep: Path | None, settings: Settings, skip: tuple[int, ...] = ()) -> dict[int, float]:
    """The losses of a training in which nothing is broken; it passes over the batches in ``skip``.

    RuntimeError where it does not end well.
    """
    name = f"undisturbed-{layout.replace(' ', '-')}" + (f"-without-{skip[0]}-to-{skip[-1]}" if skip else "")
    _, ran = tried(Trial(name, disturbs=False, layout=layout, skip=skip), {}, keep, settings)
    if ran is None or len(ran.losses) != STEPS[layout] or ran.report["attempts"] != 1:
        raise RuntimeError(f"The undisturbed run of {layout} failed: nothing can be compared with it.")
    return ran.losses


def _reference(layout: str, keep: Path | None, settings: Settings) -> dict[int, float]:
    try:
        return undisturbed(layout, keep, settings)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


def _by_step(losses: Mapping[str, float]) -> dict[int, float]:
    return {int(step): loss for step, loss in losses.items()}


def _say(line: str) -> None:
    sys.stderr.write(f"  {line}\n")


def chosen(words: Iterable[str], repeats: int = 1, seed: int | None = None) -> list[Trial]:
    """The trials whose name has one of the words, all without any word; each so many times, one round after another."""
    wanted = list(words)
    trials = [trial for number in range(repeats) for trial in plan(seed, number)]
    return [trial for trial in trials if not wanted or any(word in trial.name for word in wanted)]


def main() -> None:
    """Run the trials one after another and print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, help="Draw step, rank and segment of every fault from it.")
    parser.add_argument("--short", action="store_true", help="Without self-checks, and less patient.")
    parser.add_argument("--minutes", type=float, default=1e9, help="Begin no trial after so long.")
    parser.add_argument("--keep", type=Path, help="Keep what the trials leave in this folder.")
    parser.add_argument("--resume", type=Path, help="File of results, a line each: appended to, and gone on from.")
    given = parser.parse_args()
    importlib.import_module("megascope.trainer.launch").preload()
    settings = SHORT if given.short else PRODUCT
    kept = _read(given.resume)
    if any(one.get("settings", SHORT.name) != settings.name for one in kept):
        raise SystemExit(f"{given.resume} has results under other settings: give another file, or --short as before.")
    if any(one.get("seed") != given.seed for one in kept if "losses" not in one):
        raise SystemExit(f"{given.resume} has results of another seed: give another file, or --seed as before.")
    references = {one["layout"]: _by_step(one["losses"]) for one in kept if "losses" in one}
    results = [one for one in kept if "losses" not in one]
    deadline = time.monotonic() + 60 * given.minutes
    for trial in left_of(chosen(given.only, given.repeat, given.seed), results):
        if time.monotonic() > deadline:
            break
        if trial.layout not in references:
            references[trial.layout] = _reference(trial.layout, given.keep, settings)
            kept_losses = {"layout": trial.layout, "losses": references[trial.layout]}
            _append(given.resume, {**kept_losses, "settings": settings.name})
        sys.stderr.write(f"{trial.name}: {trial.put_in}\n")
        for _ in range(TRIES):
            began = time.monotonic()
            result, _ = tried(trial, references[trial.layout], given.keep, settings)
            result |= {"settings": settings.name, "seed": given.seed, "commit": commit()}
            result["seconds"] = round(time.monotonic() - began, 1)
            results.append(result)
            _append(given.resume, result)
            sys.stderr.write(f"{json.dumps(result)}\n")
            if result.get("acted", True) or "left_out" in result:
                break
    report("faults", {**summary(results), "settings": settings.as_json(), "seed": given.seed})


def left_of(trials: Iterable[Trial], results: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """The trials of which there is no result yet; one whose fault did not act is none."""
    done = Counter((one["name"], one.get("fault")) for one in results if one.get("acted", True))
    left = []
    for trial in trials:
        if done[trial.name, trial.put_in] > 0:
            done[trial.name, trial.put_in] -= 1
        else:
            left.append(trial)
    return left


def _read(path: Path | None) -> list[dict[str, Any]]:
    """The lines of a file of results; one that was broken off is passed over."""
    found = []
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _append(path: Path | None, value: Mapping[str, Any]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
