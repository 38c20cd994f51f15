"""The plan of the slow trainings: every switch in every layout, faults that can act there, and what counts as right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainer_stragglers import CONFIG, HEALTHY_RUNS, LAYOUTS, LONG, Trial, plan, summary
from megascope.trainer.config import load_config
from megascope.trainer.faults.checks import check_faults
from megascope.trainer.faults.kinds import FaultKind, parse_fault


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_meets_every_switch_that_slows(layout: str) -> None:
    own = [one for one in plan(short=False) if one.layout == layout and one.fault]
    faults = [(parse_fault(one.fault), one) for one in own]
    slow = {
        (fault.factor, ",".join(fault.segments), fault.first_step, one.required)
        for fault, one in faults
        if fault.kind == FaultKind.SLOW
    }
    assert slow == {
        (1.5, "", 20, True),
        (1.5, "forward", 20, True),
        (1.5, "backward", 20, True),
        (1.1, "", 70, True),
        (1.1, "", 20, False),
        (1.1, "forward", 70, False),
        (1.1, "backward", 70, False),
    }
    others = [(fault.kind, one.required) for fault, one in faults if fault.kind != FaultKind.SLOW]
    assert others == [(FaultKind.SLOW_LINK, True), (FaultKind.SLOW_NIC, True)]
    assert all((one.steps == LONG) == (fault.first_step == 70) for fault, one in faults)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_faults_can_act_where_they_are_put_and_only_who_carries_them_is_blamed(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(parallel=LAYOUTS[layout], steps=120))
    for one in plan(short=False):
        if one.layout != layout or not one.fault:
            continue
        config, fault = load_config(path, ["--fault", one.fault]), parse_fault(one.fault)
        assert list(check_faults(config)) == []
        assert set(fault.link or fault.ranks) == set(one.blamed)


def test_trainings_without_a_fault_stand_between_the_others() -> None:
    everything, short = list(plan(short=False)), list(plan(short=True))
    assert sum(not one.fault for one in everything) == HEALTHY_RUNS
    assert set(short) <= set(everything)
    assert all(one.required for one in short)
    assert {parse_fault(one.fault).kind for one in short if one.fault} == {
        FaultKind.SLOW, FaultKind.SLOW_LINK, FaultKind.SLOW_NIC,
    }  # fmt: skip


def _result(fault: str, named: list[tuple[int, ...]], *, right: bool, required: bool = True) -> dict[str, Any]:
    trial = Trial("pp4 dp2", fault, (5,) if fault else (), required=required)
    return {"fault": trial.fault, "blamed": trial.blamed, "required": required, "named": named, "right": right} | {
        "warned": []
    }


def test_what_need_not_be_named_counts_only_where_others_are() -> None:
    told = summary(
        [
            _result("slow", [(5,)], right=True),
            _result("slow", [], right=False, required=False),
            _result("slow", [(2,)], right=False, required=False),
            _result("", [], right=True),
        ]
    )
    assert (told["trials"], told["right"], told["named_others"]) == (1, 1, 1)
    assert (told["not_required"], told["not_required_named"]) == (2, 0)
    assert (told["healthy"], told["false_alarms_in_healthy"]) == (1, 0)
