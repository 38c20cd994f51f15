"""The share of effective time: against a simulation, its limits, and the published counts that it rests on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.effective_time import (
    DAYS,
    GPUS,
    INTERRUPTIONS,
    effective_share,
    measured_recoveries,
    rate_per_s,
    rows,
    settings_of,
)


def simulated(rate: float, every_s: float, stall_s: float, recovery_s: float) -> float:
    """Pieces of work one after another, each begun again after every interruption."""
    random, pieces, spent = np.random.default_rng(5), 100_000, 0.0
    left = pieces
    while left:
        arrivals = random.exponential(1 / rate, left)
        done = arrivals >= every_s + stall_s
        spent += done.sum() * (every_s + stall_s) + (arrivals[~done] + recovery_s).sum()
        left = int((~done).sum())
    return pieces * every_s / spent


@pytest.mark.parametrize("rate", [1e-4, 1e-3])
def test_the_formula_is_what_a_simulation_finds(rate: float) -> None:
    given = {"rate": rate, "every_s": 600.0, "stall_s": 2.0, "recovery_s": 90.0}
    assert effective_share(**given) == pytest.approx(simulated(**given), rel=0.01)


def test_rare_interruptions_cost_half_an_interval_and_the_recovery_each() -> None:
    share = effective_share(rate=1e-7, every_s=1000.0, stall_s=0.0, recovery_s=50.0)
    assert 1 - share == pytest.approx(1e-7 * (500 + 50), rel=1e-3)


def test_the_counts_are_those_that_were_published(traces: Path) -> None:
    published = json.loads((traces / "incidents" / "llama3-table5.json").read_text())
    assert (published["unexpected"], published["window_days"], published["gpus"]) == (INTERRUPTIONS, DAYS, GPUS)
    assert sum(row[2] for row in published["rows"]) == INTERRUPTIONS
    assert 86400 * rate_per_s(GPUS) == pytest.approx(419 / 54)


def test_every_row_is_made_of_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(
        json.dumps({"by_trial": {"kill": {"median_recovery_s": 6.0}, "sigstop": {"median_recovery_s": 20}}})
    )
    found = list(rows(measured_recoveries(path), gpus=12288, stall_s=0.2, write_s=60.0))
    assert {(row["interruption"], row["noticed_by"]) for row in found} == {
        ("dies", "megascope"), ("hangs", "megascope"), ("hangs", "torch's timeout"),
    }  # fmt: skip
    by = {(row["interruption"], row["noticed_by"], row["every_s"], row["restart_s"]): row for row in found}
    assert by["hangs", "megascope", 600, 300]["recovery_s"] == 20 + 300 + 60
    assert by["hangs", "torch's timeout", 600, 300]["recovery_s"] == 600 + 6 + 300 + 60
    assert by["hangs", "megascope", 600, 60]["effective"] > by["hangs", "torch's timeout", 600, 60]["effective"]


@pytest.mark.parametrize(("value", "name"), [({}, None), ({"settings": {"name": "product"}}, "product")])
def test_it_is_told_under_which_settings_recoveries_were_measured(
    tmp_path: Path, value: object, name: str | None
) -> None:
    (tmp_path / "faults.json").write_text(json.dumps(value))
    assert settings_of(tmp_path / "faults.json") == name


@pytest.mark.parametrize("text", ["", "{}", '{"by_trial": {"kill": {"median_recovery_s": null}}}'])
def test_a_file_without_recoveries_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "faults.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="faults"):
        measured_recoveries(path)
