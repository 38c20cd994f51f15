"""What techniques do to the loss: all can be trained, seeds and bad batches count, and rises are read rightly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import technique_losses
from benchmarks.technique_losses import BAD_EVERY, CLIPS, CURVES, QUALITY, swings
from benchmarks.technique_pairs import BASE, with_settings


@pytest.mark.parametrize("settings", [*QUALITY.values(), *CLIPS.values()])
def test_every_technique_can_be_trained(settings: dict[str, Any]) -> None:
    with_settings(BASE, settings).validate(1)


def test_every_curve_sees_as_many_tokens_by_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def trained(config: Any, _: Any) -> Any:
        config.validate(1)
        seeds.append(config.train.seed)
        every, steps = config.train.eval_every, config.train.steps
        return SimpleNamespace(eval_losses=dict.fromkeys(range(every - 1, steps, every), config.train.seed))

    monkeypatch.setattr(technique_losses, "_trained", trained)
    result = technique_losses.lamb()
    assert result.pop("sampling") == "epochs"
    assert result.keys() == CURVES.keys()
    tokens = {tuple(curve["eval_loss_by_tokens"]) for curve in result.values()}
    assert tokens == {(81_920, 163_840, 245_760, 327_680)}
    assert all(losses == [0, 1, 2] for curve in result.values() for losses in curve["eval_loss_by_tokens"].values())
    assert seeds == [0, 1, 2] * len(CURVES)


def test_swings_are_rises_of_the_evaluation_loss_and_not_its_falls() -> None:
    assert swings([3.0, 2.0, 2.5, 2.25, 2.5, 1.5], [1.0, 200.0, 3.0]) == {
        "eval_loss": 1.5,
        "largest_rise": 0.5,
        "rises": 0.75,
        "median_norm": 3.0,
        "largest_norm": 200.0,
    }
    assert swings([3.0, 2.0], [1.0])["largest_rise"] == 0


@pytest.mark.timeout(120)
def test_bad_batches_have_long_gradients_and_do_not_reach_evaluations() -> None:
    small = with_settings(
        BASE, {"model.layers": 1, "model.width": 16, "data.limit_bytes": 50_000, "train.steps": BAD_EVERY + 1}
    )
    config = with_settings(small, {"train.eval_every": 1, "train.learning_rate": 1e-9, "train.min_learning_rate": 0.0})
    spoiled = technique_losses._trained(config, technique_losses._spoil)
    clean = technique_losses._trained(config, lambda: None)
    same = [spoiled.losses[step] == clean.losses[step] for step in range(BAD_EVERY + 1)]
    assert same.index(False) == BAD_EVERY - 1
    assert max(spoiled.grad_norms) == spoiled.grad_norms[BAD_EVERY - 1] > 2 * max(clean.grad_norms)
    assert spoiled.eval_losses[BAD_EVERY - 1] == pytest.approx(clean.eval_losses[BAD_EVERY - 1], abs=1e-4)
