"""The measures of what lies around the steps: each in its small form, and what must come out on any machine."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import technique_costs, technique_data


def test_fused_attention_keeps_no_scores() -> None:
    found = technique_costs.attention((64, 128))
    fused, written_out = ([found[n][name]["kept_bytes"] for n in ("64", "128")] for name in ("fused", "written_out"))
    assert fused[1] == 2 * fused[0]
    assert written_out[1] > 2.5 * written_out[0]


@pytest.mark.timeout(60)
def test_batches_are_prepared_beside_the_step() -> None:
    found = technique_data.prefetch()
    assert found["0"]["wait_ms"] >= 1e3 * technique_data.DRAW_S
    assert found["2"]["wait_ms"] < found["0"]["wait_ms"]


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs the extra bpe")
@pytest.mark.timeout(60)
def test_a_token_file_is_read_in_place() -> None:
    found = technique_data.tokens(size_bytes=100_000, vocabulary=300)
    assert found["text"]["token_bytes_in_memory"] > 0
    assert found["token_file"]["token_bytes_in_memory"] == 0


@pytest.mark.timeout(100)
def test_garbage_is_collected_at_the_same_steps_of_all_ranks() -> None:
    found = technique_costs.garbage(every=(20,), steps=60)["20"]
    assert found["collections"] == [3, 3]
    assert found["steps_of_one_rank_alone"] == 0


@pytest.mark.timeout(100)
def test_there_is_no_barrier_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(technique_costs, "REPEATS", 1)
    found = technique_costs.start({"pp": 2})
    assert found["without"]["barriers"] == 0
    assert found["with"]["barriers"] > 2


def test_smaller_micro_batches_keep_less() -> None:
    found = technique_costs.microbatches((4, 2))
    assert found["2"]["kept_mb"] == pytest.approx(2 * found["4"]["kept_mb"], rel=0.05)


def test_projections_are_timed() -> None:
    assert all(took > 0 for took in technique_costs.projections(16, 32).values())
