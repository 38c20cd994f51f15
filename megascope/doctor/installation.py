"""Checks of what is installed: Python, the packages that megascope requires, and what its verbs need beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..profiler.store_address import store_url
from .finding import Answer, advice, not_checked, ok, problem
from .machine import Machine

LEAST_PYTHON = (3, 11)

VERBS = {
    "trainer": "train, demo, supervise, preflight, ablate",
    "bpe": "training on a BPE tokenizer",
    "dashboards": "serve, demo",
    "perfetto": "opening the Timeline in Perfetto",
    "metrics": "the agents' metrics for Prometheus",
    "otel": "export otlp",
    "s3": "stores at s3://",
    "spark": "batch --engine spark",
}
"""What each extra is for."""

_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*(?P<range>[^;]*)(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")


def python(machine: Machine) -> Answer:
    """Whether this Python, on this system, is one that megascope runs on."""
    looked_at, version = "this interpreter", ".".join(map(str, machine.python))
    if machine.python < LEAST_PYTHON:
        return problem(looked_at, version, f"use Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    if machine.system != "linux":
        return problem(
            looked_at, f"{version} on {machine.system}", "record and run agents on Linux: they read /proc and /dev/shm"
        )
    return ok(looked_at, version)


def packages(machine: Machine) -> Answer:
    """Whether what megascope requires is there, in a version that it knows."""
    looked_at = "requirements of the package megascope"
    wanted = list(_required(machine, None))
    version = machine.version_of("megascope")
    if version is None or not wanted:
        return not_checked(looked_at, "megascope is not installed as a package: it runs from a folder of sources")
    wrong = [text for name, bounds in wanted if (text := _wrong(machine, name, bounds))]
    if wrong:
        return problem(looked_at, f"megascope {version}; {', '.join(wrong)}", "pip install --upgrade megascope")
    return ok(looked_at, f"megascope {version} and its {len(wanted)} requirements")


def extras(machine: Machine) -> Answer:
    """What verbs need beside that; a problem only where the settings ask for it."""
    looked_at = "extras of the package megascope"
    lacking = {extra: names for extra in VERBS if (names := _lacking(machine, extra))}
    asked = {
        "metrics": "MEGASCOPE_METRICS" in machine.env,
        "s3": (store_url(machine.store) or "").startswith(("s3:", "s3a:")),
    }
    needed = [extra for extra, is_asked in asked.items() if is_asked and extra in lacking]
    if needed:
        value = "; ".join(f"{', '.join(lacking[extra])} for {VERBS[extra]}, which the settings ask for"
                          for extra in needed)  # fmt: skip
        return problem(looked_at, value, f"pip install 'megascope[{','.join(needed)}]'")
    if not any(list(_required(machine, extra)) for extra in VERBS):
        return not_checked(looked_at, "megascope is not installed as a package: it runs from a folder of sources")
    if lacking:
        value = "; ".join(f"without {', '.join(names)}: no {VERBS[extra]}" for extra, names in lacking.items())
        return advice(looked_at, value, f"for those: pip install 'megascope[{','.join(lacking)}]'")
    return ok(looked_at, f"all of {', '.join(VERBS)}")


def least_torch(machine: Machine) -> str | None:
    """The oldest torch that megascope knows, as its package says."""
    for name, bounds in _required(machine, "trainer"):
        if name == "torch":
            return next((version for sign, version in bounds if sign == ">="), None)
    return None


def as_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``"2.13.0+cpu"`` is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _lacking(machine: Machine, extra: str) -> list[str]:
    return [text for name, bounds in _required(machine, extra) if (text := _wrong(machine, name, bounds))]


def _required(machine: Machine, extra: str | None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(package, its bounds) of an extra, or of megascope itself."""
    try:
        texts = machine.requirements()
    except ModuleNotFoundError:  # importlib's PackageNotFoundError: no package of that name
        return
    for text in texts:
        found = _REQUIREMENT.fullmatch(text)
        if found is None:
            continue
        named = _EXTRA.search(found["marker"] or "")
        if (named[1] if named else None) == extra and found["name"] != "megascope":
            yield found["name"], _BOUND.findall(found["range"])


def _wrong(machine: Machine, name: str, bounds: list[tuple[str, str]]) -> str | None:
    """What is wrong with a package; None where nothing is."""
    version = machine.version_of(name)
    if version is None:
        return f"{name} (not installed)"
    for sign, bound in bounds:
        here, there = as_numbers(version), as_numbers(bound)
        width = max(len(here), len(there))
        padded = [part + (0,) * (width - len(part)) for part in (here, there)]
        if (padded[0] >= padded[1]) != (sign == ">="):
            return f"{name} {version} (wanted: {sign}{bound})"
    return None
