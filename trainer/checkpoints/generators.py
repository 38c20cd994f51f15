"""The states of a rank's random numbers, kept in a checkpoint."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import torch
from torch import Tensor

from ...profiler.topology import stable_id


def states_of_generators(device: torch.device) -> dict[str, str]:
    """torch's own generators of the host and of a device, in base64."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def set_generators(states: Mapping[str, str], device: torch.device) -> None:
    """Give torch's generators the states that `states_of_generators` returned."""
    if "cpu" in states:
        torch.set_rng_state(_state(states["cpu"]))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(_state(states["cuda"]), device)


def seed_generators(seed: int, step: int, rank: int) -> None:
    """Begin anew where another layout saved the checkpoint: the same in every resume, other on every rank."""
    torch.manual_seed(stable_id("generators", str(seed), str(step), str(rank)))


def _state(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
