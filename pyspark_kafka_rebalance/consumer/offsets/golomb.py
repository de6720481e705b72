"""Packs two rows of numbers into few bits, with exponential Golomb codes.

A code has a parameter k. A number n is written as n + 2^k in binary, with a zero before it for each
of its digits beyond k + 1. Small numbers are short, no number is too large, and no code is a prefix
of another. With k near the median of the numbers' own bit lengths, that is close to the shortest
that a fixed code can be for lengths of gaps, dense or sparse.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The bits of each of the two parameters: no offset has more than 63 bits.
_PARAMETER_BITS = 6


def _parameter(numbers: Sequence[int]) -> int:
    """The parameter that makes these numbers shortest, or nearly."""
    middle = sorted(numbers)[len(numbers) // 2].bit_length()
    return min(
        range(max(0, middle - 3), middle + 2),
        key=lambda k: sum(2 * (n + (1 << k)).bit_length() for n in numbers) - k * len(numbers),
    )


def packed(lengths: Sequence[int], spaces: Sequence[int]) -> bytes:
    """The two parameters, then lengths and as many spaces in turn; zeros fill the last byte."""
    orders = _parameter(lengths), _parameter(spaces)
    bits = [format(k, f"0{_PARAMETER_BITS}b") for k in orders]
    for pair in zip(lengths, spaces, strict=True):
        for number, k in zip(pair, orders, strict=True):
            written = format(number + (1 << k), "b")
            bits.append("0" * (len(written) - 1 - k) + written)
    whole = "".join(bits)
    size = (len(whole) + 7) // 8
    return int(whole.ljust(size * 8, "0"), 2).to_bytes(size, "big")


def unpacked(body: bytes) -> list[int]:
    """Lengths and spaces in turn, as packed; empty if the last one is cut off."""
    bits = format(int.from_bytes(body, "big"), f"0{len(body) * 8}b")
    if len(bits) < 2 * _PARAMETER_BITS:
        return []
    at = 2 * _PARAMETER_BITS
    orders = int(bits[:_PARAMETER_BITS], 2), int(bits[_PARAMETER_BITS:at], 2)
    numbers: list[int] = []
    while (one := bits.find("1", at)) >= 0:
        k = orders[len(numbers) % 2]
        end = one + 1 + (one - at) + k
        if end > len(bits):
            return []
        numbers.append(int(bits[one:end], 2) - (1 << k))
        at = end
    return numbers
