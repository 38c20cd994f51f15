"""``megascope tokenize``: makes a token file of texts, for the trainer to memory-map."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError
from .common import Json, print_json, progress_of


def tokenize(
    *texts: Annotated[Path, Parameter(help="Texts, one after another; Python's own sources if absent.")],
    out: Annotated[Path, Parameter(help="The token file, NAME.npy; NAME.json beside it describes it.")],
    tokenizer: Annotated[str, Parameter(help="bytes, bpe (trained here), or the tokenizer.json of a model.")] = "bytes",
    vocabulary: Annotated[
        int, Parameter(help="Tokens that bpe is trained to.", validator=Number(gte=257, lte=1 << 24))
    ] = 4096,
    sample_mb: Annotated[
        float, Parameter(help="How much of the texts bpe is trained on, in MB.", validator=Number(gt=0))
    ] = 100.0,
    json: Json = False,
) -> int:
    """Turn texts of any size into a file of token ids, which training memory-maps (data.tokens).

    The texts are read part by part. The name must not be taken; when interrupted, nothing that can be read is left.

    Example: megascope tokenize corpus/*.txt --out corpus.npy --tokenizer bpe --vocabulary 8192
    """
    try:
        module = importlib.import_module("megascope.trainer.data.tokenizing")
    except ImportError as error:
        raise MegascopeError(f"{error.name} is not installed: pip install 'megascope[trainer]'.") from error
    with progress_of("Tokenizing") as progress:
        made = module.tokenize(
            texts, out, tokenizer=tokenizer, vocabulary=vocabulary, sample_bytes=int(sample_mb * 1e6), progress=progress
        )
    if json:
        print_json(
            {"schema": 1, "file": out, "tokens": made.tokens, "vocabulary": made.vocabulary, "checksum": made.checksum}
        )
        return 0
    sys.stdout.write(
        f"{made.tokens:,} tokens below {made.vocabulary:,}: {out}\n"
        f"Train on them with --data.tokens {out} --model.vocabulary {made.vocabulary}\n"
    )
    return 0
