"""The share of effective time: against a simulation, its limits, and the published counts that it rests on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.effective_time import (
    ENDS,
    effective_share,
    measured_recoveries,
    mixed,
    rate_per_s,
    rows,
    settings_of,
    told,
)
from benchmarks.fault_trials import plan
from benchmarks.interruptions import (
    CAUSES,
    DAYS,
    GPUS,
    INTERRUPTIONS,
    NEEDED,
    by_cause,
    mean_recovery_s,
    saved_share,
)

ROUND = {
    "kill": 10.0, "xid": 9.0, "host-loss": 4.0, "host-silent": 14.0, "exception": 6.0, "sigstop": 28.0,
    "slow-nic": 12.0, "slow-rank": 11.0, "data-loader-stall": 29.0, "checkpoint-stall": 46.0,
}  # fmt: skip


def written(path: Path, recoveries: dict[str, float | None], settings: str = "product") -> Path:
    """What `benchmarks.faults` prints, of so much as is read of it."""
    trials = {name: {"median_recovery_s": seconds} for name, seconds in recoveries.items()}
    path.write_text(json.dumps({"by_trial": trials, "settings": {"name": settings}}))
    return path


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
    assert [tuple(row[::2][:2]) for row in published["rows"]] == [(cause.component, cause.count) for cause in CAUSES]
    assert sum(row[2] for row in published["rows"]) == INTERRUPTIONS
    assert 86400 * rate_per_s(GPUS) == pytest.approx(419 / 54)


def test_every_trial_that_stands_for_a_cause_is_one_of_the_campaign() -> None:
    assert {trial.name for trial in plan()} >= NEEDED | set(ENDS.values())


def test_causes_are_weighted_by_their_counts() -> None:
    """By hand: GPUs 256 x 10 s, programs 54 x 6, network 42 x 28, maintenance 32 x 11, hosts 11 x 14, disks 3 x 46,
    and 21 others as a hang of 28."""
    assert mean_recovery_s(ROUND) == pytest.approx(5292 / 419)
    assert saved_share() == pytest.approx(32 / 419)
    found = {row["cause"]: row for row in by_cause(ROUND)}
    assert sum(row["count"] for row in found.values()) == 419
    assert (found["Faulty GPU"]["counts_as"], found["Faulty GPU"]["recovery_s"]) == ("kill", 10.0)
    assert found["SSD"]["counts_as"] == "checkpoint-stall"
    assert {name for name, row in found.items() if not row["steps_lost"]} == {"Host Maintenance"}
    assert {name for name, row in found.items() if not row["tried"]} == {
        "Silent Data Corruption", "GPU Thermal Interface + Sensor", "Dependency",
    }  # fmt: skip


def test_the_share_of_the_mixture_by_hand() -> None:
    """6.7355e-5 interruptions a second, of which 6.2211e-5 lose steps: a piece of 300.2 s takes 303.02 s of work, and
    132.63 s after each interruption add 0.893 %."""
    found = mixed(ROUND, gpus=12288, stall_s=0.2, write_s=60.0, every_s=300.0, restart_s=60.0)
    assert found["recovery_s"] == 132.6
    assert found["effective"] == pytest.approx(300 / (303.02 * 1.00893), abs=1e-4) == 0.9813
    assert told(found, 12288) == "98.1 % at 12,288 GPUs with a checkpoint every 5 minutes and 60 s to start again"


def test_what_is_saved_before_loses_the_recovery_alone() -> None:
    given = {"rate": 1e-7, "every_s": 1000.0, "stall_s": 0.0, "recovery_s": 50.0}
    assert 1 - effective_share(**given, saved=0.25) == pytest.approx(1e-7 * (0.75 * 500 + 50), rel=1e-3)
    assert effective_share(**given, saved=1.0) == pytest.approx(1 / (1 + 1e-7 * 50), rel=1e-12)


def test_every_row_is_made_of_what_was_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "faults.json", {"kill": 6.0, "sigstop": 20, "nan": None})
    found = list(rows(measured_recoveries([path], ENDS.values()), gpus=12288, stall_s=0.2, write_s=60.0))
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
    assert settings_of([tmp_path / "faults.json"]) == name


def test_the_last_file_that_has_a_trial_counts(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", {"kill": 6.0, "xid": None})
    second = written(tmp_path / "b.json", {"xid": 9.0})
    assert measured_recoveries([first, second], ("kill", "xid")) == {"kill": 6.0, "xid": 9.0}
    with pytest.raises(SystemExit, match=r"No trial of xid recovered in .*a\.json: run .* --only xid"):
        measured_recoveries([second, first], ("kill", "xid"))
    assert settings_of([first, second]) == "product"
    with pytest.raises(SystemExit, match="under different settings"):
        settings_of([first, written(tmp_path / "c.json", {}, "short")])


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"by_trial": [1]}', '{"by_trial": {"kill": 3}}', '{"by_trial": {"kill": {}}}']
)
def test_a_file_without_recoveries_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "faults.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="faults"):
        measured_recoveries([path], ENDS.values())
