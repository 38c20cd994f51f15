"""Asks a Spark cluster every question of `megascope batch` in one session: STORE MASTER FOLDER, JSON on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from megascope.batch.align import find_alignment
from megascope.batch.changed import find_changed, sides_of
from megascope.batch.engines import Engine, EngineName, open_engine
from megascope.batch.rollups import find_rollups
from megascope.batch.scope import Scope, find_scope
from megascope.batch.whatif import find_whatif_over
from megascope.batch.worst import find_worst
from megascope.collectors.reading.store import Store
from megascope.collectors.verdicts import to_json

STRETCH = 10


def answers(scope: Scope, engine: Engine, folder: Path) -> dict[str, Any]:
    """Every job's answer, rows of `rollups` and `align` in ``folder``."""
    return {
        "worst": find_worst(scope, engine, 1000),
        "changed": find_changed(scope, engine, sides_of(scope, None, None), 1000),
        "rollups": find_rollups(scope, engine, folder / "rollups"),
        "align": find_alignment(scope, engine, folder / "align"),
        "whatif": find_whatif_over(scope, engine, STRETCH),
    }


if __name__ == "__main__":
    found = find_scope(Store(sys.argv[1]), None, None, None)
    spark = open_engine(EngineName.SPARK, found, sys.argv[2])
    json.dump(to_json(answers(found, spark, Path(sys.argv[3]))), sys.stdout)
    spark.close()
