"""DuckDB over the store's own files, on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..collectors.reading.evolution import literal
from ..collectors.reading.store import Attempt
from ..collectors.storage.durable import sync_folder
from .dialects import Dialect, translate
from .engines import Piece, Question
from .folders import new_folder
from .scope import Scope


class DuckDBEngine:
    """Answers by DuckDB; large intermediate results go to the temporary folder, small tables too."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._folder = tempfile.TemporaryDirectory(prefix="megascope-batch-")
        self._tables = 0

    def ask(self, question: Question) -> pa.Table:
        """The answer, in memory."""
        return self.scope.store.query(self._sql(question), attempt=self._attempt())

    def save(self, question: Question, folder: Path) -> int:
        """Write the answer into a new folder."""
        rows = 0
        with new_folder(folder) as growing:
            writer: pq.ParquetWriter | None = None
            for batch in self.scope.store.stream(self._sql(question), attempt=self._attempt()):
                if writer is None:
                    writer = pq.ParquetWriter(growing / "part-00000.parquet", batch.schema, compression="zstd")
                writer.write_batch(batch)
                rows += batch.num_rows
            if writer is not None:
                writer.close()
            sync_folder(growing)
        return rows

    def each_piece(self, question: Question, pieces: Mapping[int, str], work: Piece, answer: pa.Schema) -> pa.Table:
        """One piece after the other, so that only one is in memory."""
        found = [answer.empty_table()]
        for number, condition in pieces.items():
            narrowed = f"SELECT * FROM ({question.sql}) AS pieces WHERE piece = {number} AND {condition}"
            piece = self.ask(Question(narrowed, question.small))
            if piece.num_rows:
                found.append(work(piece).cast(answer))
        return pa.concat_tables(found)

    def close(self) -> None:
        """Remove the small tables."""
        self._folder.cleanup()

    def _attempt(self) -> Attempt | None:
        """One attempt's views read its files alone."""
        return self.scope.attempts[0] if len(self.scope.attempts) == 1 else None

    def _sql(self, question: Question) -> str:
        sql = translate(question.sql, Dialect.DUCKDB)
        around = []
        for name, table in question.small.items():
            path = Path(self._folder.name) / f"{self._tables}.parquet"
            self._tables += 1
            pq.write_table(table, path)
            around.append(f"{name} AS (SELECT * FROM read_parquet({literal(str(path))}))")
        return f"WITH {', '.join(around)} SELECT * FROM ({sql}) AS answer" if around else sql
