"""The pairs of the techniques' benchmark: both sides can be trained, and differ in what they are about alone."""

from __future__ import annotations

import pytest

from benchmarks.technique_pairs import BASE, PAIRS, _run, with_settings


@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_can_be_trained(name: str) -> None:
    pair = PAIRS[name]
    off, on = (with_settings(BASE, {**pair.both, **side}) for side in (pair.off, pair.on))
    for config in (off, on):
        config.validate(config.topology().world_size)
    assert (off == on) == (name == "control")


@pytest.mark.timeout(60)
def test_what_a_forward_keeps_is_counted_without_the_weights() -> None:
    small = with_settings(BASE, {"train.steps": 3, "model.layers": 1, "data.limit_bytes": 50_000})
    run, wider = _run(small), _run(with_settings(small, {"model.vocabulary": 512}))
    table = 256 * 64 * 4 / 1e3
    logits = small.model.sequence * small.microbatch_sequences * 256 * 4 / 1e3
    assert wider["weights_kb"] - run["weights_kb"] == pytest.approx(2 * table)
    assert wider["state_kb"] - run["state_kb"] == pytest.approx(6 * table)
    assert 0 < wider["saved_kb"] - run["saved_kb"] <= 3 * logits
    assert run["messages"] == 0
    assert run["cpu_ms"] > 0
