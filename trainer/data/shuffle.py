"""A shuffled order of any number of sequences that needs no memory: where one comes is computed, on any rank alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

ROUNDS = 4
"""Of a Feistel network, from which on it looks random where its rounds do (Luby and Rackoff 1988)."""


def splitmix64(values: Words) -> Words:
    """Mix 64-bit numbers (Steele, Lea and Flood 2014): the same numbers everywhere, unlike a library's generator."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def shuffled(places: Words, keys: Words, count: int) -> Words:
    """For each place below ``count``, which of ``count`` things comes there in the order of the key beside it.

    A permutation for each key: of a power of four at first, walked on until the result lies below ``count`` (Black and
    Rogaway 2002), which takes less than four tries on average.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    result = places.copy()
    todo = np.ones(len(result), dtype=bool)
    while todo.any():
        result[todo] = _permuted(result[todo], keys[todo], half)
        todo = result >= np.uint64(count)
    return result


def _permuted(values: Words, keys: Words, half: int) -> Words:
    """A permutation of the numbers of twice ``half`` bits."""
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for number in range(ROUNDS):
        key = splitmix64(keys ^ np.uint64(number))
        left, right = right, left ^ (splitmix64(right ^ key) & mask)
    return (left << shift) | right
