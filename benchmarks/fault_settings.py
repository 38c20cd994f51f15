"""Under which settings the trials of `faults` are made: the product's, or short ones that leave the self-check out."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from megascope.commands.supervise import DEFAULT_CHECK
from megascope.trainer.supervisor.job import Patience
from megascope.trainer.supervisor.limits import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """What a supervisor is given beside the job. ``limit_s``: a trial that takes longer has failed."""

    name: str
    self_check: tuple[str, ...]
    limits: Limits
    patience: Patience
    limit_s: float

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "name": self.name,
            "self_check": shlex.join(self.self_check),
            "backoff_s": self.limits.backoff_s,
            "patience": asdict(self.patience),
        }


PRODUCT = Settings("product", tuple(shlex.split(DEFAULT_CHECK)), Limits(), Patience(), 420.0)
"""As `megascope supervise` has them without any flag."""

SHORT = Settings("short", (), Limits(backoff_s=3.0), Patience(save_s=4.0, ask_every_s=5.0, join_s=60.0), 240.0)
"""No self-check, and less patience: for tests, and for many repetitions."""
