"""What it takes to be accused: sizes, surety and lengths, for single steps and for averages over windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What it takes to be accused. All must hold at once."""

    min_ratio: float = 1.07
    pair_ratio: float = 1.20
    """Instead of ``min_ratio`` where a rank has a single peer: which of the two is slow rests on one comparison."""
    many_peers: int = 12
    """From so many peers on their median is sure and their spread known: less will do, as the four that follow say."""
    many_ratio: float = 1.05
    many_length: int = 12
    """Steps that a stretch needs, whether it has ended or not."""
    many_ended_share: float = 0.003
    """Instead of ``ended_excess_share``."""
    min_z: float = 3.0
    """Effect over its standard error along the steps, before `needed_z` adds what the search has tried."""
    min_between: float = 3.5
    """Effect over the spread between the other ranks: machines are never quite alike."""
    min_share_beyond: float = 0.6
    """Share of the steps from the first to the last that lie beyond half the effect."""
    min_length: int = 15
    """Steps of a stretch that still goes on: shorter ones come and go on any shared machine."""
    shortest_steps: int | None = None
    """Where columns are averages: steps of a stretch that would be named if there was a column for each."""
    strong_length: int | None = None
    """The same from ``strong_ratio`` on, where columns are averages: fewer of them cannot be anything else."""
    strong_ratio: float = 1.5
    end_slack: int = 2
    """A stretch that ends so few steps before the last is taken to go on: the noise of so few cannot tell."""
    ended_length: int = 20
    ended_excess_share: float = 0.03
    """Of a stretch that has ended: its steps, and its excess as a share of the time of all steps looked at."""
    min_excess_share: float = 0.01
    """Excess over the peers, as a share of the step's time."""
    min_steps: int = 10
    healthy_steps: int = 30
    """Before anybody is called healthy: twice the shortest stretch, or what began late would go unseen."""
    stall_steps: float = 10.0
    """A single stall is named from this many steps' time on."""

    def for_width(self, steps: int) -> Thresholds:
        """The same where a column is an average over so many steps; a few columns are needed whatever they average."""
        if steps == 1:
            return self
        return replace(
            self,
            min_length=max(-(-self.min_length // steps), 3),
            shortest_steps=self.min_length,
            strong_length=max(-(-self.min_length // steps), 2),
            end_slack=0,
            ended_length=max(-(-self.ended_length // steps), 4),
            min_steps=max(-(-self.min_steps // steps), 4),
            healthy_steps=max(-(-self.healthy_steps // steps), 8),
            stall_steps=self.stall_steps / steps,
        )

    @property
    def shortest(self) -> int:
        """Columns of the shortest stretch that is looked for."""
        return self.min_length if self.strong_length is None else self.strong_length

    def least_ratio(self, peers: int) -> float:
        """Own time over the peers' from which on a rank with so many peers may be accused."""
        if peers == 1:
            return self.pair_ratio
        return self.many_ratio if peers >= self.many_peers else self.min_ratio

    def least_ended_share(self, peers: int) -> float:
        """Excess that a stretch which has ended needs, as a share of the time of all steps looked at."""
        return self.many_ended_share if peers >= self.many_peers else self.ended_excess_share

    def needed_length(self, ratio: float, to_the_end: bool, peers: int = 0) -> int:
        """Columns that a stretch needs, of a rank with so many peers. Averages over steps do not get by with less."""
        if peers >= self.many_peers and self.shortest_steps is None:
            return self.many_length
        is_strong = self.strong_length is not None and ratio >= self.strong_ratio
        least = self.strong_length if is_strong and self.strong_length is not None else self.min_length
        return least if to_the_end else least + self.ended_length - self.min_length

    def needed_z(self, rows: int, steps: int, length: int, to_the_end: bool) -> float:
        """z that a stretch must reach, given how many others might have come up by chance.

        The largest of n independent deviations is about sqrt(2 ln n); a stretch of a part of the steps is one of
        many, the more the shorter it is; and what has ended is held to more than what still goes on.
        """
        tried = math.sqrt(2 * math.log(max(rows, 2)))
        return self.min_z + tried + 1.5 * math.log(max(steps / max(length, 1), 1.0)) + (0.0 if to_the_end else 1.0)
