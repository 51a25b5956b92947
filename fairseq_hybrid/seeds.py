"""A seed from several integers, the same on every machine and under every Python."""

from __future__ import annotations

WORD = 2**64
PRIMES = 11400714785074694791, 14029467366897019727, 2870177450012600261


def mix(*numbers: int) -> int:
    """A number of 63 bits that depends on all of these (whole numbers, 0 to 2 ** 61 - 2).

    The steps are xxHash's; the numbers are those that CPython 3.8 to 3.13 have for
    ``hash(numbers) % 2**63``, which was used here before, so runs of then can be repeated.
    """
    first, second, last = PRIMES
    state = last
    for number in numbers:
        if not 0 <= number < 2**61 - 1:
            raise ValueError(f"{number} is no part of a seed: give 0 to 2 ** 61 - 2")
        state = (state + number * second) % WORD
        state = (state << 31 | state >> 33) % WORD
        state = state * first % WORD
    state = (state + (len(numbers) ^ last ^ 3527539)) % WORD
    return (1546275796 if state == WORD - 1 else state) % 2**63
