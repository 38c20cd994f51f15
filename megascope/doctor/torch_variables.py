"""Variables as torch's C++ reads them (c10d/Utils.hpp): what it takes a text for, and which of two names wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
PLACE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DUMP_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
MONITORING = ("TORCH_NCCL_ENABLE_MONITORING",)
HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
DUMP_WAIT = ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",)

DEFAULT_HEARTBEAT_S = 480
DEFAULT_DUMP_WAIT_MS = 15_000
COLLECTIVE_TIMEOUT_S = 600
"""torch 2.13: what it does where nothing is set. The last is `init_process_group`'s for NCCL, no variable's."""

_INTEGER = re.compile(r"\s*([+-]?\d+)")
_TRUE, _FALSE = frozenset({"y", "yes", "1", "t", "true"}), frozenset({"n", "no", "0", "f", "false"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that is set, under the name that wins."""

    name: str
    text: str

    @property
    def integer(self) -> int | None:
        """What ``std::stoi`` makes of it: the number it begins with ("10m" is 10); None where torch raises."""
        found = _INTEGER.match(self.text)
        number = int(found[1]) if found else None
        return number if number is not None and -(2**31) <= number < 2**31 else None

    @property
    def boolean(self) -> bool | None:
        """What torch takes it for; None where it raises."""
        text = self.text.lower()
        return True if text in _TRUE else False if text in _FALSE else None

    def __str__(self) -> str:
        return f"{self.name}={self.text[:80]}"


def chosen(env: Mapping[str, str], names: tuple[str, ...]) -> Variable | None:
    """The variable of some names that torch goes by: the first that is set; None where none is."""
    return next((Variable(name, env[name]) for name in names if name in env), None)
