"""English inflection: articles, plurals, verb forms, comparatives, numbers."""

from __future__ import annotations

from wordlists import sections, words

_TABLES = sections("english")
_PLURALS = dict(_TABLES["plurals"])
_IRREGULAR = {base: forms for base, *forms in _TABLES["verbs"]}  # past, participle
_DOUBLING = words("english", "doubling")
PRONOUNS = {forms[0]: forms for forms in _TABLES["pronouns"]}  # subject, object, possessive
_SINGULAR = ("he", "she", "it")
_NUMBERS, _TENS = words("english", "numbers"), words("english", "tens")


def indefinite(following: str) -> str:
    """``a`` or ``an`` before the given word, by sound."""
    word = following.lower()
    if word.startswith(("uni", "use", "eu", "one")) and not word.startswith("unin"):
        return "a"
    return "an" if word.startswith((*"aeiou", "honest", "honor", "hour")) else "a"


def _ends_in_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def _add_s(word: str) -> str:
    if _ends_in_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


def plural(noun: str) -> str:
    """Plural of a noun, the last word being the head: fairy tales, police officers."""
    *front, head = noun.split(" ")
    return " ".join([*front, _PLURALS.get(head) or _add_s(head)])


def third_person(base: str) -> str:
    """He-form of the present: goes, has, tries."""
    if base in ("be", "have"):
        return "is" if base == "be" else "has"
    return base + "es" if base.endswith("o") else _add_s(base)


def present(base: str, subject: str) -> str:
    """Present tense of one word for a pronoun such as ``I`` or ``they``."""
    if subject in _SINGULAR:
        return third_person(base)
    return base if base != "be" else "am" if subject == "I" else "are"


def past(base: str, subject: str = "it") -> str:
    """Simple past."""
    if base == "be" and subject not in (*_SINGULAR, "I"):
        return "were"
    return _IRREGULAR[base][0] if base in _IRREGULAR else _regular(base)


def participle(base: str) -> str:
    """Past participle."""
    return _IRREGULAR[base][1] if base in _IRREGULAR else _regular(base)


def _regular(base: str) -> str:
    if _ends_in_y(base):
        return base[:-1] + "ied"
    return base.removesuffix("e") + base[-1] * (base in _DOUBLING) + "ed"


def comparative(word: str) -> str:
    """bigger, happier, more interesting."""
    if word == "good":
        return "better"
    if word.endswith("y") and word != "lonely":
        return word[:-1] + "ier"
    if len(word) > 6 or word in ("famous", "honest", "useful", "boring"):
        return "more " + word
    double = (len(word) == 3 and word[-1] not in "wyd" and word[-2] in "aeiou") or word == "sad"
    return word.removesuffix("e") + word[-1] * double + "er"


def number(value: int) -> str:
    """0 to 999 in words: ``121`` is one hundred and twenty-one."""
    hundreds, rest = divmod(value, 100)
    if hundreds:
        return f"{_NUMBERS[hundreds]} hundred" + (f" and {number(rest)}" if rest else "")
    tens, unit = divmod(rest, 10)
    if rest < 20:
        return _NUMBERS[rest]
    return _TENS[tens - 2] + (f"-{_NUMBERS[unit]}" if unit else "")
