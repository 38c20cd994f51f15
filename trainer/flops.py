"""FLOPs of the model, peak rates of devices, and the model FLOP/s utilization that follows from them."""

from __future__ import annotations

import re

from .config import ModelConfig, Precision

BF16, FP32, FP64 = Precision.BF16, Precision.FP32, Precision.FP64
PEAK_FLOPS: dict[str, dict[Precision, float]] = {
    "GB200": {BF16: 2500e12, FP32: 80e12, FP64: 40e12},
    "B200": {BF16: 2250e12, FP32: 75e12, FP64: 37e12},
    "GH200": {BF16: 989e12, FP32: 67e12, FP64: 67e12},
    "H200 NVL": {BF16: 835e12, FP32: 60e12, FP64: 60e12},
    "H200": {BF16: 989e12, FP32: 67e12, FP64: 67e12},
    "H100 NVL": {BF16: 835e12, FP32: 60e12, FP64: 60e12},
    "H100 PCIe": {BF16: 756e12, FP32: 51e12, FP64: 51e12},
    "H100 HBM3": {BF16: 989e12, FP32: 67e12, FP64: 67e12},
    "H800 NVL": {},
    "H800 PCIe": {BF16: 756e12, FP32: 51e12, FP64: 0.8e12},
    "H800": {BF16: 989e12, FP32: 67e12, FP64: 1e12},
    "H20": {BF16: 148e12, FP32: 44e12, FP64: 1e12},
    "A100 SXM4": {BF16: 312e12, FP32: 19.5e12, FP64: 19.5e12},
    "A100 PCIe": {BF16: 312e12, FP32: 19.5e12, FP64: 19.5e12},
    "A800 SXM4": {BF16: 312e12, FP32: 19.5e12, FP64: 19.5e12},
    "A800 PCIe": {BF16: 312e12, FP32: 19.5e12, FP64: 19.5e12},
    "A40": {BF16: 149.7e12, FP32: 37.4e12},
    "A30": {BF16: 165e12, FP32: 10.3e12, FP64: 10.3e12},
    "A10": {BF16: 125e12, FP32: 31.2e12},
    "L40S": {BF16: 362e12, FP32: 91.6e12},
    "L40": {BF16: 181e12, FP32: 90.5e12},
    "L20": {BF16: 119.5e12, FP32: 59.8e12},
    "L4": {BF16: 121e12, FP32: 30.3e12},
    "V100 SXM2": {FP32: 15.7e12, FP64: 7.8e12},
    "V100 PCIe": {FP32: 14e12, FP64: 7e12},
}
"""Dense peak FLOP/s of one GPU, by words of the device's name; the first with all its words there holds.

Source: NVIDIA's data sheet of each product, under the form factor that the name tells; B200 and GB200: "HGX B200" and
"GB200 NVL72", a GPU's share. Where a sheet gives a peak with sparsity, half of it. fp64 counts tensor cores where there
are any; fp32 is without TF32. A part of a device (MIG), and a device without its sheet, has no peak here.
"""


def matrix_parameters(model: ModelConfig) -> int:
    """Parameters that a token is multiplied with: projections, feed-forward and output, not the embedding lookup."""
    per_layer = (4 + 2 * model.feed_forward) * model.width**2
    return model.layers * per_layer + model.vocabulary * model.width


def flops_per_token(model: ModelConfig) -> float:
    """Training FLOPs of one token, forward and backward, without recomputation.

    6 N + 12 L D S (PaLM, Chowdhery et al. 2022, appendix B): N as in `matrix_parameters`, which includes the
    vocabulary; L layers of width D; S tokens of a sequence, or of the sliding window where that is shorter. As in
    published figures, attention is counted in full, not halved for the causal mask. What is computed a second time
    does not count: recomputation lowers the utilization by the time it takes.
    """
    attended = model.sequence if model.window is None else min(model.window, model.sequence)
    return 6.0 * matrix_parameters(model) + 12.0 * model.layers * model.width * attended


def peak_flops(device_name: str | None, precision: Precision) -> float | None:
    """Peak FLOP/s of one device, from the name that CUDA gives it; None for a CPU or an unknown device."""
    words = set(re.split(r"[\s-]+", (device_name or "").upper()))
    for name, peaks in PEAK_FLOPS.items():
        if words.issuperset(name.upper().split()) and "MIG" not in words:
            return peaks.get(precision)
    return None


def utilization(model: ModelConfig, tokens_per_second: float, devices: int, peak: float | None) -> float | None:
    """Model FLOP/s utilization of the job, 0 to 1; None where the peak is unknown."""
    return None if peak is None else flops_per_token(model) * tokens_per_second / (devices * peak)
