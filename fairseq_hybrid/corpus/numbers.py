"""Numbers 0–999 in words, German and English."""

from __future__ import annotations

from .text import words

_DE = words("null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf")
_DE_TEENS = words("dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn")
_DE_TENS = words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_EN = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_EN_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")


def german(number: int) -> str:
    """``21`` → ``einundzwanzig``."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        head = ("ein" if hundreds == 1 else _DE[hundreds]) + "hundert"
        return head + (german(rest) if rest else "")
    if rest <= 12:
        return _DE[rest]
    if rest < 20:
        return _DE_TEENS[rest - 13]
    tens, unit = divmod(rest, 10)
    if not unit:
        return _DE_TENS[tens - 2]
    return ("ein" if unit == 1 else _DE[unit]) + "und" + _DE_TENS[tens - 2]


def english(number: int) -> str:
    """``121`` → ``one hundred and twenty-one``."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return f"{_EN[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    if rest < 20:
        return _EN[rest]
    tens, unit = divmod(rest, 10)
    return _EN_TENS[tens - 2] + (f"-{_EN[unit]}" if unit else "")
