"""Recorded machines: what real GPUs and adapters told is kept, and what they did not tell is NULL and not 0."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from megascope.collectors.hardware.metrics import DEVICE
from megascope.collectors.hardware.rdma import read_ports
from megascope.collectors.hardware.reading import Row, Rows
from megascope.collectors.hardware.rules import of_gpu, of_port
from megascope.collectors.health import BLANK, OUT_OF_RANGE
from support.nvidia_texts import gpus_of, write_ports

ECC = ("ecc_corrected_errors", "ecc_uncorrected_errors")


def rows_of(text: str) -> dict[str, dict[str, Row]]:
    """UUID to rows by metric."""
    rows = Rows()
    return {uuid: {row["metric"]: row for row in rows.of_gpu(uuid, told, 0.0)} for uuid, told in gpus_of(text).items()}


def test_eight_gpus_are_read_as_they_stood_and_nothing_is_wrong_with_them(traces: Path) -> None:
    found = rows_of((traces / "gpud" / "nvidia-smi-query.535.154.05.out.0.valid").read_text())
    assert len(found) == 8
    first = found["GPU-313bbff0-b0a0-fd26-4820-0578bdef3a12"]
    told = {"temperature_celsius": 41, "power_watts": 67.76, "sm_clock_mhz": 2520, "pcie_width": 16}
    assert {metric: first[metric]["value"] for metric in told} == told
    assert first["device_memory_used_bytes"]["value"] == 20328 * 2**20
    assert max(one["power_watts"]["value"] for one in found.values()) == 313.42
    for rows in found.values():
        assert rows.keys() == {metric.name for metric in DEVICE}
        assert all((row["value"] is None) == (row["flag"] is not None) for row in rows.values())
        assert {rows[metric]["flag"] for metric in ECC} == {BLANK}  # these GPUs have no ECC
        # Newer GPUs tell how far below its limit they slow down, which is no temperature.
        assert rows["slowdown_temperature_celsius"]["flag"] == OUT_OF_RANGE
        assert [name for name, row in rows.items() if row["flag"] == OUT_OF_RANGE] == ["slowdown_temperature_celsius"]
        assert rows["pcie_generation_max"]["value"] == 4
        last = {name: row["value"] for name, row in rows.items()}
        assert list(of_gpu("it", last, {}, None, None, {"pcie_width": 16})) == []


def test_what_was_cut_off_is_blank(traces: Path) -> None:
    (rows,) = rows_of((traces / "gpud" / "nvidia-smi-query.535.183.01.out.0.invalid").read_text()).values()
    known = {name: row["value"] for name, row in rows.items() if row["value"] is not None}
    assert known == {
        "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16,
        "pcie_replay_errors": 120,
    }  # fmt: skip
    assert {row["flag"] for name, row in rows.items() if name not in known} == {BLANK}
    assert list(of_gpu("it", {name: row["value"] for name, row in rows.items()}, {}, None, None, {})) == []


def test_ports_that_are_down_are_told_apart_from_those_that_went_down(traces: Path, tmp_path: Path) -> None:
    write_ports(tmp_path, (traces / "gpud" / "ibstat.47.0.some.down.0").read_text())
    rows = Rows()
    up: dict[str, float] = {}
    rates: dict[float, int] = defaultdict(int)
    for port in read_ports(tmp_path):
        values = {row["metric"]: row["value"] for row in rows.of_port(port, 0.0)}
        up[str(port["port"])] = values["rdma_link_up"]
        rates[values["rdma_rate_bits_per_s"]] += 1
    assert len(up) == 12
    assert sorted(name for name, is_up in up.items() if not is_up) == ["mlx5_2/1", "mlx5_7/1", "mlx5_8/1"]
    assert rates == {4e11: 8, 1e11: 1, 4e10: 3}
    down = {"rdma_link_up": 0.0}
    assert [one.text for one in of_port("it", down, {}, {"rdma_link_up": 0.0}, 0)] == ["it is not up"]
    assert [one.text for one in of_port("it", down, {}, {"rdma_link_up": 1.0}, 0)] == ["it went down"]
