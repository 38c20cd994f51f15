"""Lines of logs: packed, cut, endless, undecodable; and the moments in them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.logs.facts import Speaker
from megascope.viz3d.logs.lines import LONGEST, PIECES, LineReader
from megascope.viz3d.logs.one_file import read_file
from megascope.viz3d.logs.speakers import file_speakers, is_labelled, split_speaker
from megascope.viz3d.logs.stamps import Stamps
from support.job_logs import JobLog


def test_plain_and_packed_files_have_the_same_lines(tmp_path: Path) -> None:
    text = b"first\nsecond\r\n\nlast without an end"
    plain, packed = tmp_path / "job.log", tmp_path / "job.log.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    expected = [(1, b"first"), (2, b"second"), (3, b""), (4, b"last without an end")]
    assert list(LineReader(plain)) == expected
    assert list(LineReader(packed)) == expected


def test_a_cut_archive_gives_what_is_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    lines = b"".join(b"%x" % (number * 2654435761 % 2**61) + b"\n" for number in range(60_000))
    path.write_bytes(gzip.compress(lines)[:300_000])
    reader = LineReader(path)
    count = sum(1 for _ in reader)
    assert 1000 < count < 60_000
    assert reader.trouble == "it is cut: its end is missing"


def test_an_endless_line_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"x" * (5 * LONGEST) + b"\nnext\n")
    reader = LineReader(path)
    assert [(number, len(line)) for number, line in reader] == [(1, LONGEST), (2, 4)]
    assert reader.cut_lines == 1


def test_a_progress_bar_is_one_line_of_its_last_pieces(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"\r".join(b"%d%%" % number for number in range(300)) + b"\n")
    pieces = list(LineReader(path))
    assert len(pieces) == PIECES
    assert pieces[-1] == (1, b"299%")


def test_a_file_that_is_not_there_is_told_and_no_error(tmp_path: Path) -> None:
    reader = LineReader(tmp_path / "absent.log")
    assert list(reader) == []
    assert reader.trouble is not None
    assert "cannot be read" in reader.trouble


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_bytes_stop_the_reading(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A log with any bytes anywhere is read to its end; the alarms that are whole are found."""
    log = JobLog()
    log.times_out(3, 7)
    log.raises(1, "ValueError: x")
    log.reports(2, -9)
    lines = [line.encode() for line in log.lines]
    noise = data.draw(st.lists(st.binary(max_size=60), max_size=6))
    for piece in noise:
        lines.insert(data.draw(st.integers(0, len(lines))), piece.replace(b"\n", b"").replace(b"\r", b""))
    cut = data.draw(st.integers(0, 40))
    text = b"\n".join(lines)
    path = tmp_path_factory.mktemp("noise") / "job.log"
    path.write_bytes(text[: len(text) - cut])
    facts = read_file(path, "job.log", Speaker())
    assert any(getattr(one, "sequence", None) == 7 and getattr(one, "rank", None) == 3 for one in facts.facts)


def ns(year: int, month: int, day: int, hour: int, minute: int, second: int, part_ns: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * 10**9 + part_ns


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[2021-05-27 19:54:20,386] [INFO] x", ns(2021, 5, 27, 19, 54, 20, 386_000_000)),
        ("  time      : 2025-05-21_15:43:03", ns(2025, 5, 21, 15, 43, 3)),
        ("2025-05-21T15:43:03.25+02:00 x", ns(2025, 5, 21, 13, 43, 3, 250_000_000)),
        ("2025-05-21T15:43:03Z x", ns(2025, 5, 21, 15, 43, 3)),
        ("[E327 17:04:16.986381360 ProcessGroupNCCL.cpp:565] x", ns(2026, 3, 27, 17, 4, 16, 986_381_360)),
        ("[E1026 04:01:30.105007493 ProcessGroupNCCL.cpp] x", ns(2025, 10, 26, 4, 1, 30, 105_007_493)),
        ("E0325 20:57:27.620000 2606 site-packages/torch/x.py:869] x", ns(2026, 3, 25, 20, 57, 27, 620_000_000)),
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", ns(2025, 2, 23, 16, 24, 18)),
        ("Feb 23 16:24:18 node7 kernel: x", ns(2026, 2, 23, 16, 24, 18)),
        ("no moment: 19:54", None),
        ("2025-13-45 99:99:99", None),
        ("[E1399 04:01:30.1 x]", None),
        ("[E230 04:01:30.1 x]", None),
    ],
)
def test_moments_of_every_style(line: str, expected: int | None) -> None:
    """A stamp without a year takes the newest one in which it is not after the file's last change."""
    assert Stamps(modified_ns=ns(2026, 4, 1, 0, 0, 0)).moment_ns(line) == expected


def test_a_stamp_without_a_year_takes_the_one_of_the_last_full_date() -> None:
    stamps = Stamps(modified_ns=ns(2026, 4, 1, 0, 0, 0))
    stamps.moment_ns("2024-02-29 00:00:00 begun")
    assert stamps.moment_ns("[E301 01:00:00.5 x]") == ns(2024, 3, 1, 1, 0, 0, 500_000_000)
    assert Stamps().moment_ns("[E301 01:00:00.5 x]") is None


@pytest.mark.parametrize(
    ("line", "speaker", "rest"),
    [
        ("[rank13]: boom", Speaker(13), "boom"),
        ("[rank13]:[E1 x] boom", Speaker(13), "[E1 x] boom"),
        ("[default3]:boom", Speaker(None, 3), "boom"),
        ("[default3]:[rank11]: boom", Speaker(11, 3), "boom"),
        ("worker-1: [rank9]: boom", Speaker(9, None, "worker-1"), "boom"),
        ("[1,7]<stderr>:boom", Speaker(7), "boom"),
        ("12: a line of a program", Speaker(), "12: a line of a program"),
        ("plain", Speaker(), "plain"),
    ],
)
def test_who_speaks(line: str, speaker: Speaker, rest: str) -> None:
    assert split_speaker(line) == (speaker, rest)


def test_labels_of_srun_count_only_where_all_lines_have_them() -> None:
    assert is_labelled([" 3: a", "12: b"])
    assert not is_labelled([" 3: a", "b"])
    assert split_speaker(" 12: boom", labelled=True) == (Speaker(12), "boom")
    assert split_speaker(" 2: [rank14]: boom", labelled=True) == (Speaker(14), "boom")


def test_names_of_files_that_hold_one_rank_each() -> None:
    torchrun = [Path(f"/logs/run/attempt_0/{local}/stderr.log") for local in range(3)]
    assert [file_speakers(torchrun)[path].rank for path in torchrun] == [0, 1, 2]
    two_hosts = [*torchrun, Path("/other/run/attempt_0/0/stderr.log")]
    assert {file_speakers(two_hosts)[path].rank for path in two_hosts} == {None}
    slurm = [Path(f"/logs/job-77_{task}.out") for task in (0, 1, 2)]
    assert [file_speakers(slurm)[path].rank for path in slurm] == [0, 1, 2]
    named = Path("/logs/host7-rank003.log")
    assert file_speakers([named]) == {named: Speaker(3)}
    hosts = [Path(f"/logs/node{number}.log") for number in (0, 1)]
    assert file_speakers(hosts) == {}
    assert file_speakers([Path("/logs/slurm-4711.out")]) == {}
