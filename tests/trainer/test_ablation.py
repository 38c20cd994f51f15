"""Ablation: which variants a configuration has, what an interval holds, and a planted effect on real processes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.trainer.ablation.estimating import Effect, Run, effects, median_interval
from megascope.trainer.ablation.running import run_variants
from megascope.trainer.ablation.switches import BASE, CONTROL, SWITCHES, TOGETHER, Switch, plan, with_settings
from support.training import small_config


def test_all_switches_name_settings_that_there_are() -> None:
    config = small_config(tp=2, pp=2, dp=4)
    for switch in SWITCHES:
        for name in [*switch.off, *switch.on(config)]:
            section, _, key = name.partition(".")
            assert key in {field.name for field in fields(getattr(config, section))}, name
        assert with_settings(config, switch.off) is not None
        changed = with_settings(with_settings(config, switch.off), switch.on(config))
        assert changed != with_settings(config, switch.off), f"{switch.name} changes nothing"


def test_variants_of_a_layout_with_every_axis() -> None:
    planned = plan(small_config(tp=2, pp=2, dp=2, chunks=2))
    names = [variant.name for variant in planned.variants]
    assert names[:2] == [BASE, CONTROL]
    assert names[-1] == TOGETHER
    assert set(names[2:-1]) == {switch.name for switch in SWITCHES} - {"pods"}
    assert planned.skipped == {"pods": "it needs dp 4 or more, and dp is 2"}
    base, control, *others, together = planned.variants
    assert base.config == control.config
    assert base.config.parallel.chunks == 1, "the base has every switch off"
    for variant in planned.variants:
        variant.config.validate(8)
    for variant in others:
        assert variant.config == with_settings(base.config, variant.settings)
    assert together.settings["parallel.chunks"] == 2
    assert together.settings["train.optimizer"] == "lamb"
    assert "parallel.zero" not in together.settings


def test_what_can_do_nothing_is_skipped_with_the_reason() -> None:
    planned = plan(small_config(dp=2))
    assert planned.skipped["ring"] == "it needs tp 2 or more, and tp is 1"
    assert planned.skipped["p2p-overlap"] == "it needs pp 2 or more, and pp is 1"
    only = plan(small_config(dp=2), ["dp-overlap"])
    assert [variant.name for variant in only.variants] == [BASE, CONTROL, "dp-overlap"]
    assert only.skipped == {}
    with pytest.raises(UsageError, match="no switch 'speed'"):
        plan(small_config(dp=2), ["speed"])


def test_what_the_trainer_refuses_is_skipped_with_its_sentence() -> None:
    seven = Switch("seven", "", {"model.layers": 4}, lambda config: {"model.layers": 7})
    planned = plan(small_config(pp=2), switches=[seven])
    assert [variant.name for variant in planned.variants] == [BASE, CONTROL]
    assert "7 layers cannot be cut" in planned.skipped["seven"]


def test_the_interval_by_hand() -> None:
    # 10 values: P(B <= 1) = 11 / 1024, twice that is 2.1 %: from the second smallest to the second largest.
    assert median_interval([5, 1, 2, 3, 4, 6, 7, 8, 9, 100]) == (5.5, 2.0, 9.0)
    assert median_interval([1, 2, 3, 4, 5, 6]) == (3.5, 1.0, 6.0)
    middle, low, high = median_interval([1, 2, 3, 4, 5])
    assert (middle, low, high) == (3, -np.inf, np.inf)


@pytest.mark.parametrize("size", [6, 10, 20])
def test_the_interval_holds_the_median_as_often_as_it_says(size: int) -> None:
    random = np.random.default_rng(size)
    trials = [median_interval(random.standard_cauchy(size).tolist()) for _ in range(4000)]
    held = np.mean([low <= 0 <= high for _, low, high in trials])
    assert held >= 0.95 - 3 * (0.05 * 0.95 / 4000) ** 0.5


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=40))
def test_the_interval_is_in_order_and_within_the_values(values: list[float]) -> None:
    middle, low, high = median_interval(values)
    assert min(values) <= low <= middle <= high <= max(values)


def runs(factor: float, repeats: int = 10, tokens: int = 1) -> list[Run]:
    """The base gets slower and slower; the variant is faster by ``factor`` for each token, in each repeat."""
    found = []
    for repeat in range(repeats):
        usual = 1000.0 * (1 + repeat)
        for variant, each, wall in (("base", 1, usual), ("other", tokens, usual * tokens / factor)):
            found.append(
                Run(variant=variant, repeat=repeat, tokens=each, wall_ns=wall, cpu_ns=1.0, messages=0, size_bytes=0)
            )
    return found


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_pair_is_compared_within_its_repeat_and_for_each_token(tokens: int) -> None:
    effect = effects(runs(1.25, tokens=tokens), "base", "wall_ns")["other"]
    assert (effect.percent, effect.low, effect.high) == pytest.approx((25, 25, 25))
    assert effect.is_visible
    assert not Effect(1.0, -0.1, 2.0).is_visible
    assert Effect(-1.0, -2.0, -0.1).is_visible


@pytest.mark.alone
@pytest.mark.timeout(200)
def test_a_planted_effect_is_visible_on_real_processes() -> None:
    slow = ("slow rank=1 factor=50 segment=forward",)
    switch = Switch("slowness", "a fault", {"fault": ()}, lambda config: {"fault": slow})
    planned = plan(small_config(dp=2, model={"layers": 1}, train={"microbatches": 1}), switches=[switch])
    seen: list[tuple[int, int]] = []
    done = run_variants(planned.variants, repeats=6, steps=1, progress=lambda *at: seen.append(at))
    assert sorted((run.repeat, run.variant) for run in done) == sorted(
        (repeat, name) for repeat in range(6) for name in (BASE, CONTROL, "slowness")
    )
    assert all(total == 18 for _, total in seen)
    effect = effects(done, BASE, "wall_ns")["slowness"]
    assert effect.high < 0
    assert len({(run.messages, run.size_bytes) for run in done}) == 1, "a slow rank sends what the others send"
    assert all(run.tokens == 8 * 32 for run in done)


@pytest.mark.timeout(60)
def test_a_rank_that_fails_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    broken = Switch("broken", "", {"fault": ()}, lambda config: {"fault": ("raise rank=1 step=1",)})
    config = small_config(dp=2)
    planned = plan(replace(config, parallel=replace(config.parallel, timeout_s=20)), switches=[broken])
    with pytest.raises(MegascopeError, match="no effect can be told"):
        run_variants(planned.variants, repeats=1, steps=1)
    assert "rank " in capfd.readouterr().err
