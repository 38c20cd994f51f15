"""Simulated sequences of unequal length whose tokens are told: they go with the work, and the verdict uses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megascope.heatmap.per_token import SIGNAL
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import CulpritKind
from megascope.profiler.errors import UsageError
from megascope.trainer.simulator.fault_effects import effect_of
from megascope.trainer.simulator.faults import parse_fault
from support.small_job import ALL, COSTS, job_of, open_simulated

UNEVEN = "uneven-sequences:spread=0.4"


@pytest.mark.parametrize("told", [True, False])
def test_tokens_are_those_of_the_replica(told: bool, tmp_path: Path) -> None:
    fault = parse_fault(UNEVEN + (":tokens=told" if told else ""))
    job = job_of(steps=30, effects=(effect_of(fault),))
    store, attempt = open_simulated(tmp_path / "s", job, ALL)
    with store:
        rows = store.query("SELECT rank, step, rank_tokens AS own FROM steps ORDER BY 1, 2", attempt=attempt)
        own = rows["own"].to_pylist()
        if not told:
            assert own == [None] * len(own)
            return
        tokens = np.array(own, float).reshape(job.world_size, job.steps)
        replica = job.grid.replica
        assert all((tokens[replica == one] == tokens[replica == one][0]).all() for one in (0, 1))
        assert not (tokens[replica == 0][0] == tokens[replica == 1][0]).any()
        assert COSTS.tokens_per_step is not None
        usual = COSTS.tokens_per_step / job.grid.replicas
        assert tokens.mean() == pytest.approx(usual, rel=0.1)
        work = store.query(
            "SELECT rank, step, sum(self_ns)::DOUBLE AS ns FROM spans WHERE segment_name = 'forward' AND step >= 0 "
            "GROUP BY ALL ORDER BY 1, 2",
            attempt=attempt,
        )["ns"].to_numpy()
        assert np.corrcoef(np.log(work), np.log(tokens.ravel()))[0, 1] > 0.9
        found = find_stragglers(store, attempt)
    assert [one for one in found.culprits if one.kind in {CulpritKind.RANK, CulpritKind.HOST}] == []
    assert any("compared per token" in one.reason for one in found.abstained if one.signal == SIGNAL)


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="use told"):
        parse_fault(UNEVEN + ":tokens=some")
