"""`megascope import`: what it says, what the other verbs make of it, and one sentence for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.cli import main
from support.chrome import host, kernel, marker, write_trace


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [event for step in range(3) for at in (1000 * step,) for event in (
        marker(step, at, 900), host("aten::mm", at + 1, 50), kernel("gemm", at + 60, 500),
    )]  # fmt: skip
    return write_trace(tmp_path / "job.pt.trace.json", events, rank=0, world_size=1)


def test_every_verb_works_afterwards(tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    code, out, err = run(capsys, "import", str(trace), "--to", store, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert {name: said[name] for name in ("run", "format", "ranks", "world_size", "steps", "spans", "rejected")} == {
        "run": "job", "format": "kineto", "ranks": 1, "world_size": 1, "steps": 3, "spans": 6, "rejected": 0,
    }  # fmt: skip
    code, out, _ = run(capsys, "stragglers", store, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "insufficient-evidence")
    code, out, _ = run(capsys, "hang", store, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "inconclusive")
    assert "recording of an imported run ended" in out
    code, out, _ = run(capsys, "sql", store, "SELECT count(*) AS n FROM spans", "--json")
    assert code == 0
    assert "6" in out
    out_path = tmp_path / "out.json"
    code, _, _ = run(capsys, "timeline", store, "--out", str(out_path))
    assert code == 0
    names = {event.get("name") for event in json.loads(out_path.read_text())["traceEvents"]}
    assert {"gemm", "aten::mm"} <= names


def test_for_people_it_is_a_sentence_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "t.json", [kernel("gemm", 1, 1)])
    code, out, _ = run(capsys, "import", str(trace), "--to", str(tmp_path / "store"), "--run", "mine")
    assert code == 0
    assert "run mine, format kineto, ranks 1, steps 1, spans 1" in " ".join(out.split())
    assert "one implicit step 0" in out


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("missing.json",), "There is nothing at", 2),
        (("{trace}", "--format", "xml"), "no format 'xml'", 2),
        (("{trace}", "--format", "bytedance"), "cannot be read", 1),
        (("{trace}", "--run", " "), "cannot be called", 2),
        (("{trace}", "--run", "x" * 121), "cannot be called", 2),
        (("{trace}", "--layout", "missing.yaml"), "There is nothing at", 2),
        (("{trace}", "--depth", "-1"), "Must be >= 0", 2),
    ],
)
def test_one_sentence_for_what_cannot_be(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str, code: int
) -> None:
    given = [one.format(trace=trace) for one in arguments]
    found, out, err = run(capsys, "import", *given, "--to", str(tmp_path / "store"))
    assert (found, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_a_run_is_imported_once(tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "store")
    assert run(capsys, "import", str(trace), "--to", store)[0] == 0
    code, _, err = run(capsys, "import", str(trace), "--to", store)
    assert code == 2
    assert "has a run 'job' already" in err
    assert run(capsys, "import", str(trace), "--to", store, "--run", "again")[0] == 0
