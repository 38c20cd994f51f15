"""Every verb explains itself, and bad input gives one clear sentence and exit code 1 or 2, never a traceback."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from megascope.cli import VERBS, main
from support.demo_store import small_store


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert f"Example: megascope {verb}" in out


def test_the_store_comes_first_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("serve", "stragglers", "timeline", "sql"):
        _, out, _ = run(capsys, verb, "--help")
        assert out.split("\n")[0].rstrip().endswith(("STORE", "STORE QUERY")), verb


def bad_inputs(folder: Path) -> list[tuple[list[str], int, str]]:
    (folder / "empty").mkdir()
    (folder / "file").write_text("not a store")
    (folder / "other").mkdir()
    (folder / "other" / "data.csv").write_text("a,b\n")
    newer = small_store(folder / "newer")
    marker = newer / "_megascope.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "schema": 99}))
    (folder / "typo.toml").write_text("[model]\nlayer = 4\n")
    (folder / "broken.toml").write_text("[model\n")
    (folder / "mesh.toml").write_text("[parallel]\ntp = 2\npp = 2\ndp = 2\n")
    good = str(small_store(folder / "good"))
    return [
        ([], 0, ""),
        (["bogus"], 2, "Unknown command"),
        (["stragglers"], 2, "STORE requires an argument"),
        (["stragglers", good, "--bogus"], 2, "Unknown option: --bogus"),
        (["stragglers", str(folder / "nowhere")], 1, "nowhere"),
        (["stragglers", str(folder / "file")], 1, "file"),
        (["stragglers", str(folder / "empty")], 1, "empty"),
        (["stragglers", str(folder / "other")], 1, "other"),
        (["stragglers", str(newer)], 1, "newer"),
        (["stragglers", good, "--run", "unknown"], 2, "unknown"),
        (["stragglers", good, "--attempt", "7"], 2, "7"),
        (["stragglers", good, "--attempt", "x"], 2, "unable to convert"),
        (["stragglers", good, "--steps", "a:b"], 2, "--steps a:b is not FIRST:LAST"),
        (["stragglers", good, "--steps", "9:3"], 2, "ends before it begins"),
        (["hang", str(folder / "nowhere")], 1, "nowhere"),
        (["timeline", good], 2, "--out"),
        (["timeline", good, "--out", str(folder / "file" / "x.json")], 1, "x.json"),
        (["timeline", good, "--out", str(folder / "x.json"), "--ranks", "a"], 2, "--ranks a is not a list"),
        (["sql", good], 2, "QUERY requires an argument"),
        (["sql", good, "selec 1"], 2, "selec"),
        (["sql", good, "select * from nothing"], 2, "nothing"),
        (["sql", good, "select 1", "--json", "--csv"], 2, "exclude each other"),
        (["serve", str(folder / "empty")], 1, "empty"),
        (["serve", good, "--port", "99999"], 2, "--port"),
        (["demo", "--port", "99999"], 2, "--port"),
        (["sql", good, "select 1", "--limit", "-3"], 2, "--limit"),
        (["timeline", good, "--out", str(folder / "y.json"), "--ranks", "0-999999999999"], 2, "at most"),
        (["stragglers", good, "--since", "yesterday"], 2, "--since"),
        (["collect", "--store", good, "--idle-exit", "0", "--quota-gib", "-1"], 2, "--quota-gib"),
        (["serve", good, "--host", "0.0.0.0"], 2, "--token"),
        (["train", str(folder / "nowhere.toml")], 2, "nowhere.toml"),
        (["train", str(folder / "typo.toml")], 2, "layer"),
        (["train", str(folder / "broken.toml")], 2, "broken.toml"),
        (["train", str(folder / "mesh.toml"), "--nproc", "4"], 2, "but 4 processes"),
        (["train", str(folder / "mesh.toml"), "--model.layers", "x"], 2, "not a whole number"),
        (["train", str(folder / "mesh.toml"), "--parallel.tp", "3", "--nproc", "12"], 2, "3"),
        (["train", str(folder / "mesh.toml"), "--record.store", str(folder / "file" / "store")], 1, "cannot be used"),
        (["collect", "--bogus"], 2, "--bogus"),
        (["demo", "--folder", str(folder / "file" / "runs")], 1, "cannot be used"),
        (["demo", "--bogus", "1"], 2, "--bogus"),
    ]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], int, str]]:
    return bad_inputs(tmp_path_factory.mktemp("bad"))


@pytest.mark.parametrize("number", range(40))
def test_bad_input_is_one_sentence(
    number: int, cases: list[tuple[list[str], int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(cases) == 40
    argv, expected, said = cases[number]
    code, out, err = run(capsys, *argv)
    assert code == expected, err
    if expected:
        assert said in err
        assert err.startswith("megascope: ")
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1
        assert out == ""


def test_a_port_in_use_is_said(cases: list[tuple[list[str], int, str]], capsys: pytest.CaptureFixture[str]) -> None:
    good = cases[3][0][1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, _, err = run(capsys, "serve", good, "--port", str(port))
    assert code == 1
    assert str(port) in err
    assert len(err.strip().splitlines()) == 1


def test_json_is_one_object_and_nothing_else(
    cases: list[tuple[list[str], int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    good = cases[3][0][1]
    common = {"schema", "run", "attempt", "data_age_s", "verdict", "culprits", "abstained"}
    for verb, more in (("stragglers", {"slowdown", "m_w", "m_s"}), ("hang", {"victims", "explained", "unexplained"})):
        code, out, _ = run(capsys, verb, good, "--json")
        assert code == 0
        assert common | more <= set(json.loads(out))
    code, out, _ = run(capsys, "sql", good, "select count(*) as n from ranks", "--json")
    assert json.loads(out)["columns"] == ["n"]
    code, out, _ = run(capsys, "sql", good, "select 1 as a, null as b", "--csv")
    assert out.splitlines() == ["a,b", "1,"]


def test_sql_shows_whatever_a_query_gives(
    cases: list[tuple[list[str], int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    good, odd = cases[3][0][1], "select 1 as a, 2 as a, '[/x] block[attn]' as \"[b]\", 'nan'::double as c"
    _, out, _ = run(capsys, "sql", good, odd, "--json")
    assert json.loads(out) == {
        "columns": ["a", "a", "[b]", "c"],
        "rows": [[1, 2, "[/x] block[attn]", None]],
        "truncated": False,
    }
    _, out, _ = run(capsys, "sql", good, odd, "--csv")
    assert out.splitlines() == ["a,a,[b],c", "1,2,[/x] block[attn],nan"]
    code, out, _ = run(capsys, "sql", good, odd)
    assert code == 0
    assert "[/x] block[attn]" in out
    assert "[b]" in out


def test_times_choose_steps(cases: list[tuple[list[str], int, str]], capsys: pytest.CaptureFixture[str]) -> None:
    good = cases[3][0][1]
    _, out, _ = run(capsys, "sql", good, "select min(start_ns) from steps", "--json")
    first = datetime.fromtimestamp(json.loads(out)["rows"][0][0] / 1e9, UTC)
    for since, spans in ((first - timedelta(seconds=1), 12), (first + timedelta(hours=1), None)):
        trace = str(Path(good).parent / "trace.json")
        arguments = ("timeline", good, "--out", trace, "--since", since.strftime("%Y-%m-%dT%H:%M:%S"), "--json")
        code, out, err = run(capsys, *arguments)
        if spans is None:
            assert code == 1
            assert "No step of run small" in err
        else:
            assert json.loads(out)["spans"] == spans
