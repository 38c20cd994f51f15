"""Model FLOP/s utilization: what is counted, peaks of devices, and that the documentation has the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.trainer.config import ModelConfig, Precision
from megascope.trainer.flops import PEAK_FLOPS, flops_per_token, matrix_parameters, peak_flops, utilization
from megascope.trainer.model import chunk_specs

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "trainer.md"


def test_flops_count_what_the_model_multiplies() -> None:
    model = ModelConfig(layers=3, width=32, heads=4, vocabulary=256, sequence=64)
    specs = chunk_specs(model, 0, 1)
    matrices = sum(np.prod(spec.shape) for spec in specs if len(spec.shape) == 2 and "embedding" not in spec.name)
    assert matrix_parameters(model) == matrices
    assert flops_per_token(model) == 6 * matrices + 12 * 3 * 32 * 64
    assert flops_per_token(replace(model, window=16)) == 6 * matrices + 12 * 3 * 32 * 16
    assert flops_per_token(replace(model, window=100)) == flops_per_token(model)
    assert flops_per_token(replace(model, tied=True)) == flops_per_token(model)


@given(st.integers(1, 96), st.integers(1, 200), st.integers(1, 60), st.integers(1, 4096))
def test_flops_are_megatron_s_without_its_recomputation(
    layers: int, width: int, vocabulary: int, sequence: int
) -> None:
    """Narayanan et al. 2021: 96 B s l h^2 (1 + s / 6h + V / 16lh), of which a second forward is a quarter.

    Without it: 72 B s l h^2 (1 + s / 6h + V / 12lh).
    """
    model = ModelConfig(layers=layers, width=width, vocabulary=vocabulary, sequence=sequence)
    theirs = 72 * layers * width**2 * (1 + sequence / (6 * width) + vocabulary / (12 * layers * width))
    assert flops_per_token(model) == pytest.approx(theirs, rel=1e-12)


def test_utilization_is_unknown_without_a_peak() -> None:
    model = ModelConfig()
    assert utilization(model, 1e6, 8, None) is None
    assert utilization(model, 1e6, 8, 1e12) == pytest.approx(flops_per_token(model) * 1e6 / 8e12)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA GH200 144G HBM3e", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H800", 989e12),
        ("NVIDIA H800 PCIe", 756e12),
        ("NVIDIA H800 NVL", None),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("A100-SXM4-40GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A800-SXM4-80GB", 312e12),
        ("NVIDIA A800 80GB PCIe", 312e12),
        ("NVIDIA A40", 149.7e12),
        ("NVIDIA A30", 165e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L20", 119.5e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-32GB", None),  # it has no bf16
        ("NVIDIA RTX A1000", None),
        ("NVIDIA RTX 4000 Ada Generation", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H20 MIG 1g.12gb", None),
        ("Tesla V100S-PCIE-32GB", None),
        ("Some GPU", None),
        (None, None),
    ],
)
def test_peaks_are_found_by_whole_words(name: str | None, peak: float | None) -> None:
    assert peak_flops(name, Precision.BF16) == peak


def test_peaks_of_other_formats() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", Precision.FP64) == 7.8e12
    assert peak_flops("Tesla V100-PCIE-16GB", Precision.FP32) == 14e12
    assert peak_flops("Tesla V100S-PCIE-32GB", Precision.FP32) is None
    assert peak_flops("NVIDIA L4", Precision.FP64) is None
    assert peak_flops("NVIDIA H800", Precision.FP64) == 1e12


def test_the_documentation_has_the_table() -> None:
    rows = re.findall(r"^\| ([A-Z]+\d+\w*(?: \w+)?) \| (\S+) \| (\S+) \| (\S+) \|$", DOCUMENT.read_text(), re.M)
    order = (Precision.BF16, Precision.FP32, Precision.FP64)
    told = {name: tuple(value.replace(",", "") for value in values) for name, *values in rows}
    known = {
        name: tuple(f"{peaks[each] / 1e12:g}" if each in peaks else "-" for each in order)
        for name, peaks in PEAK_FLOPS.items()
        if peaks
    }
    assert told == known
