"""`megascope hang PATH...` as a user calls it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from support.commands import finished
from support.dumps import absent_member


def test_dumps_give_a_report_a_bundle_and_json(tmp_path: Path) -> None:
    dumps = absent_member(range(4), 2).write(tmp_path / "dumps")
    bundle = tmp_path / "bundle.zip"
    found = finished(tmp_path, "hang", str(dumps), "--bundle", str(bundle), "--json", timeout_s=60)
    assert found.returncode == 0, found.stdout
    value = json.loads(found.stdout.splitlines()[0])
    assert value["verdict"] == "hang"
    assert value["culprits"][0]["ranks"] == [2]
    assert value["used"] == [{"kind": "dumps", "path": str(dumps), "count": 4, "damaged": 0}]
    with zipfile.ZipFile(bundle) as packed:
        assert sum(name.startswith("dumps/0/dumps/") for name in packed.namelist()) == 4


def test_a_path_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    found = finished(tmp_path, "hang", str(tmp_path / "absent"), timeout_s=60)
    assert found.returncode == 1
    assert "does not exist" in found.stdout
    assert "Traceback" not in found.stdout
