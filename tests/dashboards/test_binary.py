"""The binary payload: what goes in comes out, aligned for JavaScript's typed arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from megascope.dashboards.binary import pack, unpack
from megascope.profiler.errors import FormatError

arrays = st.sampled_from(["f4", "f8", "i4", "i2", "u2", "u1"]).flatmap(
    lambda kind: st_numpy.arrays(np.dtype("<" + kind if kind != "u1" else kind), st.integers(0, 20))
)


@given(st.dictionaries(st.text(max_size=8), arrays, max_size=4), st.dictionaries(st.text(), st.text(), max_size=3))
def test_round_trip(columns: dict[str, np.ndarray], meta: dict[str, str]) -> None:
    found_meta, found = unpack(pack(meta, columns))
    assert found_meta == meta
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        assert found[name].dtype == column.dtype
        assert found[name].tobytes() == column.tobytes()


@given(st.lists(st.integers(0, 9), max_size=5))
def test_every_array_starts_at_a_multiple_of_eight(sizes: list[int]) -> None:
    payload = pack({}, {str(at): np.zeros(size, "<f8") for at, size in enumerate(sizes)})
    size = int.from_bytes(payload[:4], "little")
    assert (4 + size) % 8 == 0
    header = json.loads(payload[4 : 4 + size])
    assert all(entry["offset"] % 8 == 0 for entry in header["arrays"].values())


def test_whole_nanoseconds_survive_as_float64() -> None:
    times = np.array([0, 1, 2**53 - 1], np.float64)
    assert unpack(pack({}, {"t": times}))[1]["t"].tolist() == [0, 1, 2**53 - 1]


def test_int64_is_refused() -> None:
    with pytest.raises(FormatError, match="type int64"):
        pack({}, {"start": np.zeros(3, np.int64)})


@pytest.mark.parametrize("payload", [b"", b"abc", b"\xff\xff\xff\x7f{}", b"\x02\0\0\0{}"])
def test_bytes_that_are_no_payload_are_refused(payload: bytes) -> None:
    with pytest.raises(FormatError, match="no page payload"):
        unpack(payload)
