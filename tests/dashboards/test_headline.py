"""The headline's loss comes from the ranks that compute one; that of the others is not known, and no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.dashboards.curves import curve_panels, headline
from support.span_store import FIRST_NS, MS, Span, write_spans

STEPS = 5


@pytest.mark.parametrize("with_loss", [(3,), (2, 3), (0,)], ids=["last stage", "a part of the ranks", "first rank"])
def test_a_loss_on_one_stage_alone_is_the_jobs(tmp_path: Path, with_loss: tuple[int, ...]) -> None:
    """As printed by a pipeline whose other stages have none to print (torchtitan#1232)."""
    places = [(rank, step) for rank in range(4) for step in range(STEPS)]
    rows: dict[str, list[Any]] = {
        "rank": [rank for rank, _ in places],
        "step": [step for _, step in places],
        "start_ns": [FIRST_NS + step * 100 * MS for _, step in places],
        "duration_ns": [100 * MS] * len(places),
        "loss": [4.0 - step / 10 if rank in with_loss else None for rank, step in places],
    }
    spans = [Span(rank, step, "forward", step * 100, 50) for rank, step in places]
    with write_spans(tmp_path, spans, layout={"pp": 4}, more={"steps": rows}) as store:
        attempt = store.attempt()
        found = headline(store, attempt)
        assert found.loss == pytest.approx(3.6)
        assert found.loss_step == STEPS - 1
        [training] = curve_panels(store, attempt)["panels"][0]["series"]
        assert training["y"] == pytest.approx([4.0 - step / 10 for step in range(STEPS)])
        assert _losses_of_others(store, with_loss) == {None}


def _losses_of_others(store: Store, with_loss: tuple[int, ...]) -> set[float | None]:
    known = ", ".join(map(str, with_loss))
    return set(store.query(f"SELECT loss FROM steps WHERE rank NOT IN ({known})")["loss"].to_pylist())
