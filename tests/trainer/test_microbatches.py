"""The size of micro-batches: it changes memory and time, and no result."""

from __future__ import annotations

import numpy as np
import pytest

from megascope.trainer.config import Precision
from support.training import run_config, small_config


@pytest.mark.timeout(100)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_micro_batches_of_any_size_add_up_to_the_batch(count: int) -> None:
    usual, other = (
        run_config(small_config(steps=4, precision=Precision.FP64, train={"microbatches": number}))[0]
        for number in (4, count)
    )
    np.testing.assert_allclose(other.losses, usual.losses, rtol=1e-10)
    np.testing.assert_allclose(other.grad_norms, usual.grad_norms, rtol=1e-10)
