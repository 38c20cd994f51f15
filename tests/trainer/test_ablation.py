"""Ablation: which variants a configuration has, what an interval holds, and a planted effect on real processes."""

from __future__ import annotations

import gc
import threading
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.null import NullRecorder
from megascope.profiler.vocabulary import SegmentKind
from megascope.trainer.ablation.estimating import Change, Effect, Run, effects, median_interval, wait_changes
from megascope.trainer.ablation.memory import HostMemory, held_bytes
from megascope.trainer.ablation.planning import BASE, CONTROL, TOGETHER, plan, with_settings
from megascope.trainer.ablation.running import _largest, _mean, _smaller, run_variants
from megascope.trainer.ablation.stopwatch import WARM_UP_STEPS, Stopwatch
from megascope.trainer.ablation.switches import SWITCHES, Switch
from megascope.trainer.config import Precision, load_config
from megascope.trainer.flat import FlatChunk
from megascope.trainer.flops import matrix_parameters
from megascope.trainer.loop import Trainer
from megascope.trainer.model import ModelChunk
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import small_config

ROOT = Path(__file__).parents[2]
MIB = 2**20


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
    assert set(names[2:-1]) == {switch.name for switch in SWITCHES} - {"pods"} | {"recv-ahead-off"}
    assert planned.skipped == {"pods": "it needs dp 4 or more, and dp is 2"}
    base, control, *others, together = planned.variants
    assert base.config == control.config
    assert base.config.parallel.chunks == 1, "the base has every switch off"
    for variant in planned.variants:
        variant.config.validate(8)
    for variant in others:
        assert variant.config == with_settings(base.config, variant.settings)
        assert variant.against == ("recv-ahead-off" if variant.name == "recv-ahead" else BASE)
    assert together.settings["parallel.chunks"] == 2
    assert together.settings["train.optimizer"] == "lamb"
    assert together.settings["parallel.overlap_gather"] is together.settings["parallel.overlap_reduce"] is True
    assert "parallel.zero" not in together.settings


def test_what_needs_another_technique_is_compared_with_that_one_alone() -> None:
    planned = plan(small_config(pp=2), ["recv-ahead"])
    off, on = planned.variants[2:]
    assert (off.config.parallel.overlap_p2p, off.config.parallel.recv_ahead) == (True, 0)
    assert (on.config.parallel.overlap_p2p, on.config.parallel.recv_ahead) == (True, 2)
    assert planned.against() == {CONTROL: BASE, "recv-ahead-off": BASE, "recv-ahead": "recv-ahead-off"}


def test_faults_on_purpose_are_no_part_of_it() -> None:
    planned = plan(small_config(dp=2, fault=("slow rank=1 factor=5 segment=forward",)))
    assert {variant.config.fault for variant in planned.variants} == {()}


def test_together_is_of_several_that_are_meant_for_speed() -> None:
    assert TOGETHER not in plan(small_config(dp=2), ["zero-2", "zero-3", "dp-overlap"]).against()
    assert TOGETHER in plan(small_config(dp=2), ["prefetch", "dp-overlap"]).against()


def test_the_precision_of_the_configuration_is_the_base_s() -> None:
    planned = plan(small_config(precision=Precision.BF16))
    assert planned.variants[0].config.model.precision is Precision.BF16
    assert planned.skipped["bf16"] == "model.precision is bf16, in the base as well"
    alone = plan(small_config(), ["bf16"]).variants
    assert [variant.config.model.precision for variant in alone] == [Precision.FP32, Precision.FP32, Precision.BF16]


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs a C++ compiler" in plan(small_config()).skipped["compile"]
    compiler = tmp_path / "clang++"
    compiler.touch(mode=0o755)
    assert "compile" not in plan(small_config()).skipped


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
    effect = effects(runs(1.25, tokens=tokens), {"other": "base"}, "wall_ns")["other"]
    assert (effect.percent, effect.low, effect.high) == pytest.approx((25, 25, 25))
    assert effect.is_visible
    assert not Effect(1.0, -0.1, 2.0).is_visible
    assert Effect(-1.0, -2.0, -0.1).is_visible


def test_waits_are_compared_for_as_many_tokens() -> None:
    def run(variant: str, repeat: int, tokens: int, waits: dict[str, float] | None) -> Run:
        return Run(
            variant=variant, repeat=repeat, tokens=tokens, wall_ns=1, cpu_ns=1, messages=0, size_bytes=0, wait_ns=waits
        )

    found = [
        one
        for repeat in range(10)
        for one in (
            run("base", repeat, 100, {"dp": 5e6 + repeat * 1e6, "tp": 1e6}),
            run("less", repeat, 400, {"dp": 4 * (2e6 + repeat * 1e6)}),
            run("none", repeat, 100, {}),
            run("device", repeat, 100, None),
        )
    ]
    changes = wait_changes(found, {"less": "base", "none": "base", "device": "base"})
    assert changes["less"] == Change(-4, -4, -4)
    assert changes["less"].is_visible
    assert (changes["none"].low, changes["none"].high) == (-14, -7), "from the second to the second last"
    assert "device" not in changes
    assert not Change(0, -1, 0).is_visible


def test_the_stopwatch_counts_waits_after_the_warm_up_by_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr("megascope.trainer.ablation.stopwatch.time.monotonic_ns", lambda: now)
    counted: list[int] = []
    watch = Stopwatch(lambda: counted.append(len(watch.wall_ns)))
    dp, tp = (watch.segment(f"{axis}_all_gather", SegmentKind.COLLECTIVE, axis) for axis in ("dp", "tp"))
    read, forward = watch.segment("data_read", SegmentKind.DATA), watch.segment("forward", SegmentKind.COMPUTE)
    for step in range(WARM_UP_STEPS + 2):
        watch.step(step)
        for segment in (dp, tp):
            operation = watch.begin_async(segment, group=0)
            now += 1000  # beside other work: no wait
            watch.wait_begin(operation)
            now += 10 + segment
            watch.wait_end(operation)
        for segment, took in ((read, 100), (forward, 10_000)):
            with watch.span(segment):
                now += took
    watch.end_step()
    operation = watch.begin_async(dp)
    watch.wait_begin(operation)
    now += 1_000_000  # training has ended
    watch.wait_end(operation)
    assert watch.wait_per_step() == {"dp": 10, "tp": 11, "data": 100}
    assert watch.median_wall_ns() == 2 * 1000 + 10 + 11 + 100 + 10_000
    assert counted == [WARM_UP_STEPS]


@pytest.mark.skipif(held_bytes() is None, reason="the C library does not tell")
def test_memory_on_the_host_is_what_is_held_where_it_is_looked_at() -> None:
    def some(size: int) -> torch.Tensor:
        return torch.zeros(size * MIB, dtype=torch.uint8)

    before = some(30)
    watch = HostMemory()
    forward = watch.segment("forward", SegmentKind.COMPUTE)
    freed_elsewhere = []
    for step in range(WARM_UP_STEPS + 1):
        is_warm = step == WARM_UP_STEPS
        watch.step(step)
        with watch.span(forward):
            kept = some(2 if is_warm else 70)
        freed_elsewhere.append(some(20))
        thread = threading.Thread(target=freed_elsewhere.clear)
        thread.start()
        thread.join()
        operation = watch.begin_async(forward)
        more = some(4)
        watch.wait_begin(operation)
        watch.wait_end(operation)
        del kept, more
    watch.end_step()
    del before
    most = watch.most_bytes()
    assert most is not None
    assert 5.5 * MIB <= most < 7 * MIB


@pytest.mark.parametrize(
    ("earlier", "size", "kept"), [(None, 5, 5), (7, 5, 5), (5, 7, 5), (None, None, None), (5, None, None)]
)
def test_of_two_trainings_the_smaller_need_is_kept(earlier: int | None, size: int | None, kept: int | None) -> None:
    assert _smaller(earlier, size) == kept


def test_what_one_rank_does_not_know_is_not_known() -> None:
    assert _mean([{"dp": 2.0}, {"dp": 4.0, "tp": 6.0}]) == {"dp": 3.0, "tp": 3.0}
    assert _mean([{"dp": 2.0}, None]) is None
    assert _largest([3, 7, 5]) == 7
    assert _largest([3, None]) is None


def test_nothing_of_a_training_is_left_when_it_is_over() -> None:
    """A hundred variants are trained in one process: what one of them leaves there would add up."""

    def work() -> list[str]:
        run_worker(small_config(dp=2, steps=2, model={"layers": 1}), NullRecorder())
        gc.unfreeze()
        gc.collect()
        return [type(thing).__name__ for thing in gc.get_objects() if type(thing) in (Trainer, FlatChunk, ModelChunk)]

    assert run_ranks(2, work, timeout_s=60) == [[], []]


def test_the_configuration_that_comes_along_has_a_place_for_every_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    planned = plan(load_config(ROOT / "trainer" / "configs" / "ablation.toml"))
    assert planned.skipped.keys() == {"pods"}
    for variant in planned.variants:
        variant.config.validate(8)


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
    assert all(total == 18 + 6 for _, total in seen), "two repeats come before"
    effect = effects(done, planned.against(), "wall_ns")["slowness"]
    assert effect.high < 0
    waits = wait_changes(done, planned.against())["slowness"]
    assert waits.low > 0, "the other rank waits for the slow one"
    needed = {run.memory_bytes for run in done}
    weights = 4 * matrix_parameters(planned.variants[0].config.model)
    if held_bytes() is not None:
        assert all(size is not None and size > 3.5 * weights for size in needed), "weights, gradients, half the state"
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
