"""What a device can do by itself: matrix multiplication, memory, and copies between it, its host and its neighbour."""

from __future__ import annotations

import torch

from .check import Answer, Check, Effort, Here, best_seconds, device_kind, sync_of
from .measurements import Metric
from .plan import Cluster, Round, alone

GIGA, TERA = 1e9, 1e12


class Matmul(Check):
    """Matrix multiplication: bf16 on a GPU, float32 on one core of a CPU."""

    name = "matmul"
    metrics = (Metric(name="rate", unit="TFLOP/s", margin_cpu=0.4, margin_cuda=0.05),)

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Every rank by itself."""
        return alone(cluster)

    def measure(self, here: Here) -> Answer:
        """2 n^3 operations over the shortest time; a product that is not what it must be fails the check."""
        device = here.torch_device()
        size = 8192 if device.type == "cuda" else 384
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        left, right, product = (torch.ones(size, size, dtype=kind, device=device) for _ in range(3))
        seconds = best_seconds(
            lambda: self.multiply(here, left, right, product), here.effort.window_s, sync=sync_of(device)
        )
        if not bool((product == size).all()):
            raise RuntimeError("the product of two matrices of ones has wrong numbers: this device miscalculates")
        return Answer({"rate": 2.0 * size**3 / seconds / TERA}, device_kind(device))

    def multiply(self, here: Here, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        """``product`` [size, size] = ``left`` x ``right``; of ones, it is exact in any number format."""
        torch.mm(left, right, out=product)


class Memory(Check):
    """The device's memory: a copy within it, each byte read once and written once."""

    name = "memory"
    metrics = (Metric(name="bandwidth", unit="GB/s", margin_cpu=0.4, margin_cuda=0.05),)

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Every rank by itself."""
        return alone(cluster)

    def measure(self, here: Here) -> Answer:
        """Bytes read and written over the shortest time."""
        device = here.torch_device()
        size = here.effort.size(cpu=256 << 20, cuda=4 << 30, device=device.type)
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = best_seconds(lambda: target.copy_(source), here.effort.window_s, sync=sync_of(device))
        return Answer({"bandwidth": 2 * size / seconds / GIGA}, device_kind(device))


class DeviceCopies(Check):
    """A GPU's way to its host's memory (PCIe) and to the next GPU of the host (NVLink or PCIe)."""

    name = "copies"
    metrics = tuple(
        Metric(name=name, unit="GB/s", margin_cuda=0.1) for name in ("host_to_device", "device_to_host", "to_next_gpu")
    )

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """There is nothing to copy to on a CPU."""
        return None if cluster.device == "cuda" else "the ranks run on CPUs: there is no PCIe and no NVLink to measure."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Every rank by itself, all at once."""
        return alone(cluster)

    def measure(self, here: Here) -> Answer:
        """Bytes over the shortest time; the next GPU only where this process sees one."""
        device = here.torch_device()
        size = here.effort.size(cpu=0, cuda=1 << 30, device="cuda")
        on_host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        on_device = torch.zeros(size, dtype=torch.uint8, device=device)
        window, sync = here.effort.window_s, sync_of(device)
        times = {
            "host_to_device": best_seconds(lambda: on_device.copy_(on_host, non_blocking=True), window, sync=sync),
            "device_to_host": best_seconds(lambda: on_host.copy_(on_device, non_blocking=True), window, sync=sync),
        }
        count = torch.cuda.device_count()
        if count > 1:
            there = torch.empty_like(on_device, device=torch.device("cuda", (device.index + 1) % count))
            times["to_next_gpu"] = best_seconds(lambda: there.copy_(on_device, non_blocking=True), window, sync=sync)
        return Answer({name: size / seconds / GIGA for name, seconds in times.items()}, device_kind(device))
