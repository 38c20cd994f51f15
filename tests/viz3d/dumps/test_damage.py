"""Dumps cut or flipped anywhere: never a crash, and each damaged file is counted."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.viz3d.dumps import loading
from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.loading import MOST_HOLDERS, DumpError, _check_operations, load
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import State
from support.dumps import absent_member

CONTENT = {
    as_json: absent_member(range(3), 1).write(Path(tempfile.mkdtemp()), as_json=as_json) for as_json in (False, True)
}


@settings(max_examples=150, deadline=None)
@given(as_json=st.booleans(), data=st.data())
def test_any_truncation_or_flip_is_read_or_listed(as_json: bool, data: st.DataObject) -> None:
    source = CONTENT[as_json]
    with tempfile.TemporaryDirectory() as folder:
        for path in source.iterdir():
            (Path(folder) / path.name).write_bytes(path.read_bytes())
        victim = sorted(Path(folder).iterdir())[0]
        content = bytearray(victim.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content = content[:place]
        else:
            content[place] ^= data.draw(st.integers(1, 255))
        victim.write_bytes(bytes(content))
        found = read_folder(Path(folder))
        assert set(found.dumps) | {one.rank for one in found.damaged} == {0, 1, 2}
        judge_dumps([found])


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0, 0.999), bit=st.integers(0, 7), cut=st.booleans())
def test_a_real_dump_cut_or_flipped(traces: Path, share: float, bit: int, cut: bool) -> None:
    content = bytearray((traces / "flight_recorder" / "gpu_error_1st" / "_dump_12").read_bytes())
    place = int(share * len(content))
    content[place] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "_dump_12").write_bytes(bytes(content[:place] if cut else content))
        found = read_folder(Path(folder))
        assert len(found.dumps) + len(found.damaged) == 1
        assert not cut or found.damaged
        judge_dumps([found])


class _Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return eval, ("1/0",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (pickle.dumps(_Runs()), "plain values only"),
        (pickle.dumps({"version": "3.0", "entries": []}), "format 3.0"),
        (pickle.dumps({"entries": []}), "no version"),
        (b"\x80\x04" + b"]" * 200_000 + b".", "no version"),
        (b"[" * 200_000, "damaged JSON"),
        (b"\x80\x02}q\x00" + b"X" * 83, "damaged"),
    ],
)
def test_what_is_no_dump_is_listed_with_its_reason(tmp_path: Path, content: bytes, told: str) -> None:
    absent_member(range(3), 1).write(tmp_path, [0, 2])
    (tmp_path / "_dump_1").write_bytes(content)
    found = read_folder(tmp_path)
    assert [one.rank for one in found.damaged] == [1]
    assert told in found.damaged[0].reason
    verdict = judge_dumps([found]).verdict
    assert verdict.missing == (1,)
    assert {rank for one in verdict.culprits for rank in one.ranks} <= {1}


def test_values_that_hold_each_other_over_and_over_are_refused() -> None:
    """Thirty lists, each twice the one before it: a gigabyte of values in 200 bytes."""
    twice: list[object] = []
    for _ in range(30):
        twice = [twice, twice]
    with pytest.raises(DumpError, match="over and over"):
        _loaded({"version": "2.10", "entries": twice})
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(DumpError, match="over and over"):
        _loaded({"version": "2.10", "entries": itself})
    frames = [{"name": "step"}] * 9
    assert _loaded({"version": "2.10", "entries": frames}) == {"version": "2.10", "entries": frames}


def _loaded(value: object) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "_dump_0"
        path.write_bytes(pickle.dumps(value, protocol=2))
        return load(path)


@pytest.mark.parametrize("place", [2**16, 2**24, 2**32 - 2])
def test_a_place_far_beyond_the_file_is_refused_before_there_is_room_made_for_it(tmp_path: Path, place: int) -> None:
    (tmp_path / "_dump_0").write_bytes(b"\x80\x02}r" + (place + 1).to_bytes(5, "little")[:4] + b".")
    with pytest.raises(DumpError, match="keep more values"):
        load(tmp_path / "_dump_0")


@pytest.mark.parametrize("cut", [b"J\0\0", b"r\0\0", b"G" + b"\0" * 7, b"q", b"X\4\0\0\0abc"])
def test_a_dump_that_ends_within_an_operation_is_damaged(tmp_path: Path, cut: bytes) -> None:
    (tmp_path / "_dump_0").write_bytes(b"\x80\x02}q\0(" + cut)
    with pytest.raises(DumpError, match="cut or damaged"):
        load(tmp_path / "_dump_0")


def test_a_folder_without_dumps(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("none here")
    with pytest.raises(UsageError, match="no Flight Recorder dumps"):
        read_folder(tmp_path)


def test_a_rank_whose_dump_was_left_on_its_host_is_not_accused_for_having_none(tmp_path: Path) -> None:
    """It wrote one: nothing tells that it is at fault, as an absent dump would of one rank in so many."""
    absent_member(range(16), 5).write(tmp_path, [rank for rank in range(16) if rank != 5])
    accused = judge_dumps([read_folder(tmp_path)]).verdict
    assert [one.ranks for one in accused.culprits] == [(5,)]
    (tmp_path / "left-out.node-1.txt").write_text(
        "/spool/run/0/dumps/_dump_5: its 99,000,000 bytes are more\nrubbish\n"
    )
    verdict = judge_dumps([read_folder(tmp_path)]).verdict
    assert (verdict.verdict, verdict.culprits) == (State.INCONCLUSIVE, ())
    told = " ".join(one.reason for one in verdict.abstained)
    assert "rank 5: _dump_5: left on its host: its 99,000,000 bytes are more" in told
    assert "others wait for rank 5" in told
    (tmp_path / "_dump_5").write_bytes((absent_member(range(16), 5).write(tmp_path / "other") / "_dump_5").read_bytes())
    again = judge_dumps([read_folder(tmp_path)]).verdict
    assert [one.ranks for one in again.culprits] == [(5,)]
    assert "left on its host" not in " ".join(one.reason for one in again.abstained)


def doubled(times: int, between: bytes = b"") -> bytes:
    """A key that holds the tuple before it twice, so many times."""
    content = b"\x80\x02K\x01K\x01\x86q\x00"
    for place in range(times):
        content += b"h" + bytes([place]) + between + b"h" + bytes([place]) + b"\x86q" + bytes([place + 1])
    return content + b"}h" + bytes([times]) + b"K\x01s."


COLLIDING = b"".join(
    b"\x8a" + bytes([len(key)]) + key + b"N"
    for key in (
        (each * (2**61 - 1)).to_bytes((each * (2**61 - 1)).bit_length() // 8 + 1, "little") for each in range(1, 9_999)
    )
)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",  # a key whose hash goes as deep as it is long
        doubled(200),  # one whose hash takes for ever
        doubled(200, b"\x80\x02"),
        b"\x80\x04K\x01K\x01\x86\x94" + b"h\x00h\x00\x86\x94" * 3 + b".",
        b"\x80\x04(K\x01t\x94(h\x00K\x01t.",  # a kept tuple, and a plain value behind it
        b"\x80\x02(K\x01\x85K\x01t.",
        b"\x80\x02K\x01\x85K\x01\x86.",
        b"\x80\x02K\x01\x85q\x00h\x00K\x01\x86.",
        b"\x80\x02}(" + COLLIDING + b"u.",  # whole numbers that are all the same key but one
    ],
)
def test_a_key_that_cannot_be_hashed_in_time_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_dump_0").write_bytes(content)
    with pytest.raises(DumpError):
        _check_operations(content)
    with pytest.raises(DumpError):
        load(tmp_path / "_dump_0")


def test_so_many_lists_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(b"\x80\x02(" + b"}" * (MOST_HOLDERS + 1) + b"t.")
    with pytest.raises(DumpError, match="more than"):
        load(tmp_path / "_dump_0")


def test_so_many_lists_are_not_read_from_json_either(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(b'{"version": "2.9", "entries": [' + b"[]," * MOST_HOLDERS + b"0]}")
    with pytest.raises(DumpError, match="lists, as no dump does"):
        load(tmp_path / "_dump_0")


def test_a_value_that_is_kept_twice_in_a_row_is_refused_at_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pickler does that, and each costs more to check than the byte that it is."""
    with pytest.raises(DumpError, match="keeps one value twice at 4"):
        _check_operations(b"\x80\x04N" + b"\x94" * 100_000 + b".")
    monkeypatch.setattr(loading, "MOST_HOLDERS", 10)
    with pytest.raises(DumpError, match="keeps more than 10 values"):
        _check_operations(b"\x80\x04" + b"N\x94" * 11 + b".")


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
TUPLES = st.lists(PLAIN, max_size=6).map(tuple)
VALUES = st.recursive(
    PLAIN | TUPLES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | TUPLES, inner),
    max_leaves=20,
)


@given(value=VALUES, protocol=st.sampled_from([2, 3, 4, 5]))
def test_tuples_of_plain_values_are_read_as_they_are(value: object, protocol: int) -> None:
    same = [value, value]
    dump = {"version": "2.10", "pg": ("0", "default"), "entries": [same, ("0", "default"), same]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "_dump_0"
        path.write_bytes(pickle.dumps(dump, protocol))
        assert load(path) == dump
