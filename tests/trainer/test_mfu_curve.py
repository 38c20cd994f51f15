"""The MFU curve: its arithmetic by hand, what techniques do, and the differences from published points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.trainer.config import ModelConfig
from megascope.trainer.flops import matrix_parameters
from megascope.trainer.simulator.config import SimulatedModel
from megascope.trainer.simulator.mfu_curve import ALL, FAMILIES, NONE, Family, Sweep, length_ns, mfu_curve, walked_ns
from megascope.trainer.simulator.published import GAINS, POINTS
from megascope.trainer.simulator.techniques import COMPUTE_FACTOR, Technique, work_of

SMALL = Family(
    name="small", model=SimulatedModel(layers=8, width=4096, vocabulary=1024, sequence=2048), heads=32, tp=4, pp=4,
    chunks=2, gpus=(16, 64), scaling="", batch=lambda replicas: 8 * replicas,
)  # fmt: skip
ONE = replace(SMALL, tp=1, pp=1, chunks=1, gpus=(1,))


def test_a_single_gpu_by_hand() -> None:
    model, tokens = ONE.model, 2048
    layer = (4 + 2 * 4) * 4096**2
    rate = 312e12 * 0.849
    multiply = tokens * (8 * (2 * layer + 4 * 2048 * 4096) + 2 * 1024 * 4096) / rate
    memory = 2 * (34 + 5 * 32 * 2048 / 4096) * 4096 * tokens * 8 / 1118e9
    again = 8 * 4 * 2048 * 4096 * tokens / rate
    adam = 28 * 8 * layer / 1118e9
    step = (
        8 * COMPUTE_FACTOR * (3 * multiply + 3 * memory + again) + adam + 8 * 0.002
    )  # eight readers of data, one after the other
    expected = model.flops_per_token() * tokens * 8 / step / 312e12
    assert Sweep(ONE).mfu(1, NONE) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("name", "parameters"), [("175b", 175e9), ("530b", 530e9)])
def test_the_models_have_as_many_parameters_as_their_names_say(name: str, parameters: float) -> None:
    model = FAMILIES[name].model
    config = ModelConfig(layers=model.layers, width=model.width, vocabulary=model.vocabulary)
    assert matrix_parameters(config) == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("on", [NONE, ALL, frozenset({Technique.PP_OVERLAP}), ALL - {Technique.DP_OVERLAP}])
@pytest.mark.parametrize("microbatches", [24, 40])
def test_many_micro_batches_are_drawn_on_exactly(on: frozenset[Technique], microbatches: int) -> None:
    on -= {Technique.LARGE_BATCH}
    work = work_of(SMALL.model, 32, SMALL.layout(64), microbatches=microbatches, chunks=2, on=on)
    assert length_ns(work, SMALL, 4) == pytest.approx(walked_ns(work, SMALL, 4, microbatches), rel=1e-6)


@settings(max_examples=15)
@given(st.sets(st.sampled_from(list(Technique))), st.sampled_from(list(Technique)))
def test_a_technique_never_costs_mfu(on: set[Technique], more: Technique) -> None:
    sweep = Sweep(SMALL)
    assert sweep.mfu(64, on | {more}) >= sweep.mfu(64, on - {more}) * (1 - 1e-3)


def test_a_window_changes_longer_sequences_alone() -> None:
    assert Sweep(SMALL).mfu(16, {Technique.WINDOW}) == Sweep(SMALL).mfu(16, NONE)
    long = replace(SMALL, model=replace(SMALL.model, sequence=8192))
    assert Sweep(long).mfu(16, {Technique.WINDOW}) > 1.05 * Sweep(long).mfu(16, NONE)


def test_a_curve_has_all_that_is_published_beside_it() -> None:
    curve = mfu_curve("175b", [12288])
    (point,) = curve.points
    assert point.layout == {"pp": 8, "dp": 192, "tp": 8}
    assert point.sequences == 6144
    assert point.published == {one.system: one.mfu for one in POINTS if one.model == "175b"}
    assert point.difference["Megatron-LM"] == pytest.approx(point.mfu_none - 0.412)
    assert point.difference["MegaScale"] == pytest.approx(point.mfu_all - 0.552)
    assert set(point.alone) == set(point.without) == {str(one) for one in Technique}
    assert [one.published for one in curve.ladder] == [gain for _, gain in GAINS]
    assert sum(one.gain for one in curve.ladder) == pytest.approx(point.mfu_all - point.mfu_none)
    assert all(name in curve.techniques for name in point.alone)


def test_the_factor_of_compute_is_that_of_the_one_point_it_is_taken_from() -> None:
    (point,) = [one for one in POINTS if (one.model, one.gpus, one.has_techniques) == ("530b", 2240, False)]
    assert Sweep(FAMILIES["530b"]).mfu(2240, NONE) == pytest.approx(point.mfu, abs=0.001)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="100 GPUs are no whole replicas of tp 8 x pp 8: give a multiple of 64"):
        mfu_curve("175b", [100])
    with pytest.raises(UsageError, match="no model '7b'"):
        mfu_curve("7b")
