"""Token files: what is in them, that broken ones are refused by name, and that training on one is as on its text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.trainer.config import DataConfig, Tokenizer, TrainConfig
from megascope.trainer.data import tokenizing
from megascope.trainer.data.corpus import encode, identity_of, identity_of_tokens, read_text, train_tokenizer
from megascope.trainer.data.token_files import Meaning, open_tokens, write_tokens
from megascope.trainer.data.tokenizing import tokenize
from megascope.trainer.inputs import check_inputs
from support.training import run_config, small_config, text_file

TEXT = "the cat sat on the mat\r\nand thére\x0bit\u2028is\n".encode() * 200


def make(folder: Path, text: bytes = TEXT, tokenizer: str = "bytes", vocabulary: int = 280) -> tuple[Path, Meaning]:
    """A token file of one text."""
    source, out = folder / "text.txt", folder / "tokens.npy"
    source.write_bytes(text)
    return out, tokenize([source], out, tokenizer=tokenizer, vocabulary=vocabulary, sample_bytes=10**6)


@given(parts=st.lists(st.lists(st.integers(0, 999), max_size=30), min_size=1, max_size=5).filter(any))
def test_a_file_holds_what_was_written_part_by_part(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "t.npy"
    written = write_tokens(path, (np.array(part, dtype=np.uint16) for part in parts), 1000, "{}")
    tokens, meaning = open_tokens(path)
    assert meaning == written
    assert isinstance(tokens, np.memmap)
    assert tokens.tolist() == [token for part in parts for token in part]


@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 24])
def test_a_text_in_parts_is_the_text_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(tokenizing, "PART_BYTES", part_bytes)
    out, meaning = make(tmp_path, tokenizer="bpe")
    whole = encode(TEXT, DataConfig(tokenizer=Tokenizer.BPE), train_tokenizer(TEXT, 280))
    tokens, _ = open_tokens(out)
    assert tokens.dtype == np.uint16
    assert np.array_equal(tokens, whole)
    assert meaning.vocabulary <= 280


def test_the_tokenizer_of_a_model_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(train_tokenizer(TEXT, 270))
    out, _ = make(tmp_path, tokenizer=str(tmp_path / "tokenizer.json"))
    assert open_tokens(out)[0].max() < 270
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UsageError, match=r"other.json is no tokenizer"):
        tokenize([], tmp_path / "o.npy", tokenizer=str(tmp_path / "other.json"), vocabulary=300, sample_bytes=1)
    with pytest.raises(UsageError, match=r"neither bytes nor bpe, nor a tokenizer.json that can be read"):
        tokenize([], tmp_path / "o.npy", tokenizer="words", vocabulary=300, sample_bytes=1)


def test_a_model_s_marks_limits_and_padding_leave_the_text_as_it_is(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Model
    from tokenizers.processors import TemplateProcessing

    model = Model.from_str(train_tokenizer(TEXT, 270))
    model.add_special_tokens(["<s>"])
    mark = model.token_to_id("<s>")
    assert mark is not None
    model.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", mark)])
    model.enable_truncation(5)
    model.enable_padding(length=5000)
    (tmp_path / "tokenizer.json").write_text(model.to_str())
    out, meaning = make(tmp_path, tokenizer=str(tmp_path / "tokenizer.json"))
    tokens, _ = open_tokens(out)
    assert model.decode(tokens.tolist()) == TEXT.decode()
    assert meaning.vocabulary == mark + 1


def test_a_file_of_bytes_is_the_same_text_to_a_checkpoint(tmp_path: Path) -> None:
    out, meaning = make(tmp_path)
    data = DataConfig(text=tmp_path / "text.txt")
    assert identity_of_tokens(meaning, DataConfig(tokens=out)) == identity_of(read_text(data), data, None)


def test_training_on_a_token_file_is_training_on_its_text(tmp_path: Path) -> None:
    text = text_file(tmp_path)
    out, _ = make(tmp_path, text.read_bytes())
    job = small_config(tp=2, dp=2, steps=3)
    losses = [
        run_config(replace(job, data=data))[0].losses
        for data in (DataConfig(text=text, prefetch=0), DataConfig(tokens=out, prefetch=3))
    ]
    assert losses[0] == losses[1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def exchange(path: Path) -> None:
    np.save(path, np.zeros(3, dtype=np.uint8))


def no_array(path: Path) -> None:
    path.write_bytes(b"abc")


def no_description(path: Path) -> None:
    path.with_suffix(".json").unlink()


def half_a_description(path: Path) -> None:
    beside = path.with_suffix(".json")
    beside.write_text(beside.read_text()[:20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))


def wrong_types(path: Path) -> None:
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "vocabulary": "many"}))


def newer(path: Path) -> None:
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "format": "megascope-tokens 2"}))


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (cut, "tokens.npy is cut or is no token file"),
        (exchange, r"holds uint8 of shape \(3,\), but tokens.json tells of"),
        (no_array, "tokens.npy is cut or is no token file"),
        (no_description, "tokens.json .*without which tokens.npy is no token file"),
        (half_a_description, "tokens.json does not describe a token file"),
        (empty, "tokens.npy is cut or is no token file"),
        (archive, "tokens.npy is no NumPy array"),
        (wrong_types, "tokens.json does not describe a token file"),
        (newer, "is of the format 'megascope-tokens 2'"),
        (Path.unlink, "Cannot read the token file"),
    ],
)
def test_what_is_no_whole_token_file_is_refused_by_name(
    tmp_path: Path, break_it: Callable[[Path], None], says: str
) -> None:
    out, _ = make(tmp_path)
    break_it(out)
    with pytest.raises(MegascopeError, match=says):
        check_inputs(training_on(out))


def training_on(path: Path, vocabulary: int = 256) -> TrainConfig:
    """A job on a token file that records nothing."""
    job = small_config()
    return replace(
        job,
        data=DataConfig(tokens=path),
        model=replace(job.model, vocabulary=vocabulary),
        record=replace(job.record, run=None),
    )


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path: Path) -> None:
    out, meaning = make(tmp_path, tokenizer="bpe", vocabulary=300)
    assert meaning.vocabulary > 256
    with pytest.raises(UsageError, match=rf"tokens up to {meaning.vocabulary - 1}, but model.vocabulary is 256"):
        check_inputs(training_on(out, vocabulary=256))
    check_inputs(training_on(out, vocabulary=meaning.vocabulary))


def test_a_token_file_goes_with_no_other_text(tmp_path: Path) -> None:
    out, _ = make(tmp_path)
    config = training_on(out)
    for data in ({"text": out}, {"limit_bytes": 10}, {"tokenizer": Tokenizer.BPE}):
        with pytest.raises(UsageError, match="a token file has its tokenizer"):
            replace(config, data=replace(config.data, **data)).validate(1)


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    out, _ = make(tmp_path)
    with pytest.raises(UsageError, match=r"There is a file .*tokens.npy already"):
        make(tmp_path)
    with pytest.raises(UsageError, match=r"name ends in .npy"):
        write_tokens(tmp_path / "t.bin", [], 10, "bytes")

    def parts() -> object:
        yield np.zeros(5, dtype=np.uint8)
        raise KeyboardInterrupt

    other = tmp_path / "other.npy"
    with pytest.raises(KeyboardInterrupt):
        write_tokens(other, parts(), 10, "bytes")  # type: ignore[arg-type]
    with pytest.raises(MegascopeError, match=r"There is no text to make .*other.npy of"):
        write_tokens(other, [], 10, "bytes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tokens.json", "tokens.npy"]
    assert out.exists()


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(MegascopeError, match=r"Cannot read the text .*none.txt \(No such file or directory\)"):
        tokenize([tmp_path / "none.txt"], tmp_path / "t.npy", tokenizer="bytes", vocabulary=300, sample_bytes=1)
