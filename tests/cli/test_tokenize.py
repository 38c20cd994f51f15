"""The verb ``megascope tokenize``: what it makes, says and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megascope.cli import main


def test_a_text_becomes_a_token_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "tokens.npy"
    text.write_bytes(b"some text\n" * 100)
    assert main(["tokenize", str(text), str(text), "--out", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["tokens"], made["vocabulary"], made["file"]) == (2000, 256, str(out))
    assert np.load(out).tobytes() == text.read_bytes() * 2
    assert main(["tokenize", str(text), "--out", str(out)]) == 2
    assert "There is a file" in capsys.readouterr().err


def test_the_command_to_train_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "new" / "tokens.npy"
    text.write_bytes(b"some text and some more text\n" * 100)
    assert main(["tokenize", str(text), "--out", str(out), "--tokenizer", "bpe", "--vocabulary", "260"]) == 0
    assert f"--data.tokens {out} --model.vocabulary 260" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["none.txt"], 1, "Cannot read the text none.txt"),
        (["--vocabulary", "10"], 2, "vocabulary"),
        (["--tokenizer", "none.json"], 2, "nor a tokenizer.json that can be read"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert main(["tokenize", *arguments, "--out", str(tmp_path / "t.npy")]) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
