"""What a check is: its metrics, the teams it runs on, and the work that each member does in a process of its own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .measurements import Metric
from .plan import Cluster, Round, Team

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done. ``window_s``: how long one measurement repeats itself."""

    quick: bool = False
    timeout_s: float = 60.0
    folder: Path | None = None

    @property
    def window_s(self) -> float:
        """Seconds over which a measurement is repeated."""
        return 0.25 if self.quick else 2.0

    def size(self, *, cpu: int, cuda: int, device: str) -> int:
        """Bytes or elements to work on: a quick check takes a quarter of what a whole one does."""
        whole = cuda if device == "cuda" else cpu
        return max(1, whole // 4) if self.quick else whole


@dataclass(slots=True, kw_only=True)
class Here:
    """What a member knows in its own process. ``note`` tells the parent how far it has come."""

    rank: int
    team: Team
    device: str
    local_rank: int
    cluster: Cluster
    effort: Effort
    note: Callable[[str], None]
    exchange: Callable[[str, str | None], str]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """Index in the team."""
        return self.team.index(self.rank)

    def torch_device(self) -> torch.device:
        """The device to measure; a GPU is made the current one."""
        import torch  # noqa: PLC0415

        if self.device == "cpu":
            torch.set_num_threads(1)
            return torch.device("cpu")
        device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member found: values by metric, what kind of device or link it is, and facts that are no measurement."""

    values: Mapping[str, float]
    kind: str = ""
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Check(ABC):
    """One check. Subclasses say what is measured, on which teams, and how."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    is_of_team: ClassVar[bool] = False
    """Whether a team has one value (the worst of its members) instead of one for each member."""
    needs_group: ClassVar[bool] = False
    """Whether the members need a process group of their own."""

    depends_on_first: ClassVar[bool] = False
    """Whether all members only talk with the first one, which explains what is missing from the others."""

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """Why it cannot be run here; None where it can."""
        return None

    @abstractmethod
    def rounds(self, cluster: Cluster) -> list[Round]:
        """Teams, round by round."""

    def peers(self, team: Team, cluster: Cluster) -> str:
        """What values of this team are compared with: those with the same text."""
        return "ranks"

    @abstractmethod
    def measure(self, here: Here) -> Answer:
        """The work of one member; runs in a process of its own, which is ended at the time limit."""


def best_seconds(work: Callable[[], object], window_s: float, *, least: int = 3, sync: Callable[[], None]) -> float:
    """Shortest time of one call, over at least ``least`` calls and about ``window_s`` seconds; a first is not counted.

    The shortest is what the machine can do: other processes only ever add to it.
    """
    work()
    sync()
    best, end, calls = float("inf"), time.perf_counter() + window_s, 0
    while calls < least or time.perf_counter() < end:
        began = time.perf_counter()
        work()
        sync()
        best = min(best, time.perf_counter() - began)
        calls += 1
    return best


def sync_of(device: torch.device) -> Callable[[], None]:
    """Waits until a device has done its work."""
    if device.type == "cpu":
        return lambda: None
    import torch  # noqa: PLC0415

    return lambda: torch.cuda.synchronize(device)


def device_kind(device: torch.device) -> str:
    """Name of a GPU, or of the CPU as the kernel tells it."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415

        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")
