"""The verbs `supervise` and `node`: what they refuse, and what they say about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.cli import main
from megascope.commands.node import parse_address
from megascope.profiler.errors import UsageError

CHECKPOINTS = """
[parallel]
pp = 2
dp = 2
[checkpoint]
folder = "checkpoints"
every = 5
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGASCOPE_TOKEN", raising=False)
    path = tmp_path / "job.toml"
    path.write_text(CHECKPOINTS)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(list(argv))
    return code, capsys.readouterr().err


def test_nodes_need_somewhere_to_join_and_a_secret(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "supervise", config, "--hosts", "2")
    assert (code, "give --listen ADDRESS:PORT, or --local" in text) == (2, True)
    code, text = said(capsys, "supervise", config, "--hosts", "2", "--listen", "127.0.0.1:29400")
    assert (code, "MEGASCOPE_TOKEN is not set: nodes run what the supervisor says" in text) == (2, True)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--hosts", "3", "--local"], "4 ranks cannot be spread over 3 hosts"),
        (["--hosts", "2", "--local", "--checkpoint.every", "0"], "needs checkpoints to restart from"),
        (["--hosts", "2", "--local", "--min-confidence", "2"], "min_confidence is 2"),
        (["--hosts", "2", "--local", "--max-restarts", "-1"], "max_restarts is -1"),
        (["--hosts", "2", "--local", "--threshold", "grad_factor=0.5"], "grad_factor is 0.5: give a factor above 1"),
        (["--hosts", "2", "--local", "--threshold", "heartbeats=3"], "one of heartbeat_s, slow_factor"),
    ],
)
def test_a_job_that_cannot_be_supervised_is_refused(
    config: str, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "supervise", config, *flags)
    assert code == 2
    assert sentence in text


def test_a_node_needs_a_token_and_a_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("MEGASCOPE_TOKEN", raising=False)
    code, text = said(capsys, "node", "head:29400")
    assert (code, "MEGASCOPE_TOKEN is not set: give the token" in text) == (2, True)
    monkeypatch.setenv("MEGASCOPE_TOKEN", "secret")
    code, text = said(capsys, "node", "head")
    assert (code, "'head' is not HOST:PORT" in text) == (2, True)
    code, text = said(capsys, "node", "head:29400", "--nproc", "0")
    assert (code, "give --nproc 1 or more" in text) == (1, True)


@pytest.mark.parametrize("text", ["head", "head:", ":29400", "head:0", "head:65536", "head:port"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_address(text)


def test_addresses_of_both_kinds_are_read() -> None:
    assert parse_address("head.example:29400") == ("head.example", 29400)
    assert parse_address("[::1]:29400") == ("::1", 29400)
