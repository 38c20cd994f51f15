"""Synthetic hosts whose clocks are wrong in a known way, and the ends of operations as they would note them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megascope.collectors.clocks.pairs import Ends, FloatArray, Side

FIRST_NS = 1_790_000_000 * 10**9
SECOND = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Hosts with skew and drift, and delays at which they notice the end of an operation (exponential, mean per host).

    ``groups`` are the hosts of each group; ``kind`` collective, or p2p between the two hosts of a group. ``late`` is
    the share of ends that come later by up to 100 ms, ``lost`` the share that nobody noted.
    """

    hosts: int
    groups: tuple[tuple[int, ...], ...]
    operations: int = 200
    length_s: float = 60.0
    skew_s: float = 5.0
    drift_ppm: float = 50.0
    delay_ns: tuple[float, float] = (2e3, 5e4)
    late: float = 0.05
    lost: float = 0.05
    latency_ns: float = 0.0
    kind: str = "collective"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """What each host's clock shows at reference time t: t - offset(t), offset = offset_ns + drift * (t - FIRST_NS)."""

    offset_ns: FloatArray
    drift: FloatArray

    def offset_at_ns(self, moment_ns: int) -> FloatArray:
        offsets: FloatArray = self.offset_ns + self.drift * float(moment_ns - FIRST_NS)
        return offsets


def play(scene: Scene) -> tuple[Ends, Truth]:
    """The ends that the hosts of a scene note, and the truth about their clocks; host 0 is the reference."""
    rng = np.random.default_rng(scene.seed)
    offset = rng.uniform(-scene.skew_s, scene.skew_s, scene.hosts) * SECOND
    drift = rng.uniform(-scene.drift_ppm, scene.drift_ppm, scene.hosts) * 1e-6
    offset[0] = drift[0] = 0.0
    truth = Truth(np.round(offset), drift)
    mean_delay = rng.uniform(*scene.delay_ns, scene.hosts)
    rows: list[tuple[npt.NDArray[np.int64], ...]] = []
    for number, group in enumerate(scene.groups):
        members = np.array(group)
        moments = np.sort(rng.uniform(0, scene.length_s * SECOND, scene.operations))
        shape = (scene.operations, len(members))
        delay = rng.exponential(mean_delay[members], shape)
        delay += np.where(rng.random(shape) < scene.late, rng.uniform(0, 0.1 * SECOND, shape), 0.0)
        sends = np.zeros(shape, np.int64)
        if scene.kind == "p2p":
            sends[:] = np.array([Side.SEND, Side.RECEIVE])[None, :] if number % 2 == 0 else [Side.RECEIVE, Side.SEND]
            delay += np.where(sends == Side.RECEIVE, scene.latency_ns, 0.0)
        since = moments[:, None] + delay
        clock = FIRST_NS + np.round(since - truth.offset_ns[members] - drift[members] * since).astype(np.int64)
        there = rng.random(shape) >= scene.lost
        operation = np.broadcast_to(number * scene.operations + np.arange(scene.operations)[:, None], shape)
        host = np.broadcast_to(members[None, :], shape)
        waited = rng.integers(10**5, 10**7, shape)
        rows.append(tuple(np.asarray(a, np.int64)[there] for a in (operation, host, clock, sends, waited)))
    columns = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    return Ends(*columns), truth


def worst_error_ns(found_ns: FloatArray, truth_ns: FloatArray) -> float:
    """The largest difference of any host; NaN where any is not known."""
    return float(np.max(np.abs(found_ns - truth_ns)))
