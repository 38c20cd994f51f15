"""FLOPs of the model, peak rates of devices, and the model FLOP/s utilization that follows from them."""

from __future__ import annotations

from .config import ModelConfig, Precision

PEAK_FLOPS: dict[str, dict[Precision, float]] = {
    "H200": {Precision.BF16: 989e12, Precision.FP32: 67e12, Precision.FP64: 67e12},
    "H100 PCIe": {Precision.BF16: 756e12, Precision.FP32: 51e12, Precision.FP64: 51e12},
    "H100": {Precision.BF16: 989e12, Precision.FP32: 67e12, Precision.FP64: 67e12},
    "A100": {Precision.BF16: 312e12, Precision.FP32: 19.5e12, Precision.FP64: 19.5e12},
    "L40S": {Precision.BF16: 362e12, Precision.FP32: 91.6e12},
    "L4": {Precision.BF16: 121e12, Precision.FP32: 30.3e12},
    "V100": {Precision.FP32: 15.7e12, Precision.FP64: 7.8e12},
}
"""Dense peak FLOP/s from NVIDIA's data sheets, by a part of the device's name; the first that matches holds.

fp64 counts tensor cores where there are any; fp32 is without TF32.
"""


def matrix_parameters(model: ModelConfig) -> int:
    """Parameters that a token is multiplied with: projections, feed-forward and output, not the embedding lookup."""
    per_layer = (4 + 2 * model.feed_forward) * model.width**2
    return model.layers * per_layer + model.vocabulary * model.width


def flops_per_token(model: ModelConfig) -> float:
    """Training FLOPs of one token, forward and backward, without recomputation.

    6 N + 12 L D S (PaLM, Chowdhery et al. 2022, appendix B): N as in `matrix_parameters`, which includes the
    vocabulary; L layers of width D; S tokens of a sequence, or of the sliding window where that is shorter. As in
    published figures, attention is counted in full, not halved for the causal mask.
    """
    attended = model.sequence if model.window is None else min(model.window, model.sequence)
    return 6.0 * matrix_parameters(model) + 12.0 * model.layers * model.width * attended


def peak_flops(device_name: str | None, precision: Precision) -> float | None:
    """Peak FLOP/s of one device; None for a CPU or an unknown device."""
    for part, peaks in PEAK_FLOPS.items():
        if device_name is not None and part in device_name:
            return peaks.get(precision)
    return None


def utilization(model: ModelConfig, tokens_per_second: float, devices: int, peak: float | None) -> float | None:
    """Model FLOP/s utilization of the job, 0 to 1; None where the peak is unknown."""
    return None if peak is None else flops_per_token(model) * tokens_per_second / (devices * peak)
