"""German inflection: pure functions from stems and features to forms.

Cases are ``nom acc dat gen``. Genders are ``m f n p``: the plural is a fourth one, as the genders
do not differ in it.
"""

from __future__ import annotations

from functools import cache

from wordlists import sections, words

CASES = ("nom", "acc", "dat", "gen")
_TABLES = sections("german")
_FORMS = {
    (table, case, gender): form.replace("-", "")
    for table in ("der", "ein", "dies", "weak", "mixed", "strong", "relative")
    for case, *forms in _TABLES[table]
    for gender, form in zip("mfnp", forms)
}
CONTRACTIONS = {
    (preposition, article): both for preposition, article, both in _TABLES["contractions"]
}
# nominative, accusative, dative, reflexive, possessive stem, person, number
PRONOUNS = {key: forms for key, *forms in _TABLES["pronouns"]}
# er-form, preterite and for strong verbs participle
_STRONG = {infinitive: forms for infinitive, *forms in _TABLES["strong verbs"]}
_IRREGULAR = {infinitive: forms for infinitive, *forms in _TABLES["modals"]} | _STRONG
_UNCHANGED = {infinitive for infinitive, *_ in _TABLES["modals"]} | {"wissen"}  # ich kann, er kann
_SEIN = {(1, False): "bin", (2, False): "bist", (3, False): "ist", (2, True): "seid"}
_INSEPARABLE, _WITH_GE = tuple(words("german", "inseparable")), words("german", "separate ge")
_GENITIVE_IN_S = words("german", "genitive in s")
_NUMBERS, _TENS = words("german", "numbers"), words("german", "tens")


def article(kind: str, case: str, gender: str) -> str:
    """A determiner: ``der``, ``dies``/``jed``, or an ein-word stem such as ``mein``."""
    if kind == "der":
        return _FORMS["der", case, gender]
    if kind in ("dies", "jed"):
        return kind + _FORMS["dies", case, gender]
    ending = _FORMS["ein", case, gender]
    return ("eur" if kind == "euer" and ending else kind) + ending


def relative(case: str, gender: str) -> str:
    """The relative pronoun: der, die, das, dessen, denen."""
    return _FORMS["relative", case, gender]


def adjective(stem: str, declension: str, case: str, gender: str) -> str:
    """An attributive adjective; ``declension`` is weak, mixed or strong."""
    if stem.endswith("el"):
        stem = stem[:-2] + "l"
    elif stem.endswith(("euer", "auer")):
        stem = stem[:-2] + "r"
    elif stem == "hoch":
        stem = "hoh"
    return stem.removesuffix("e") + _FORMS[declension, case, gender]


def syllables(word: str) -> int:
    """Vowel groups, which is near enough to syllables for choosing -s or -es."""
    vowels = "".join(letter if letter in "aeiouäöüyé" else " " for letter in word.lower())
    return len(vowels.split())


def genitive(lemma: str) -> str:
    """Genitive singular of a strong masculine or neuter."""
    if lemma.endswith("tus"):  # Kaktus
        return lemma
    if lemma.endswith(("nis", "Bus", "bus")):
        return lemma + "ses"
    native = lemma[-1] not in "aeiouyéh" and lemma not in _GENITIVE_IN_S
    short = native and syllables(lemma) == 1
    return lemma + ("es" if short or lemma.endswith(("s", "ß", "z", "x")) else "s")


def noun(lemma: str, plural: str, gender: str, weak: bool, case: str) -> str:
    """A noun's form; ``plural`` is its nominative plural."""
    if gender == "p":
        return plural + "n" if case == "dat" and not plural.endswith(("n", "s")) else plural
    if weak and case != "nom":
        return plural
    return genitive(lemma) if case == "gen" and gender != "f" else lemma


def _stem(infinitive: str) -> tuple[str, str]:
    """The infinitive without -en or -n, and the e that links some stems with -t: arbeitet."""
    root = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    hard = root[-1] in "nm" and root[-2] not in "aeiouäöülrhnm"
    return root, "e" if hard or root.endswith(("t", "d", "chn", "ckn")) else ""


@cache
def present(infinitive: str, person: int = 3, plural: bool = False) -> str:
    """Present tense of a verb without its separable prefix."""
    root, link = _stem(infinitive)
    if infinitive == "sein":
        return _SEIN.get((person, plural), "sind")
    if plural:
        return f"{root}{link}t" if person == 2 else infinitive
    er = _IRREGULAR[infinitive][0] if infinitive in _IRREGULAR else f"{root}{link}t"
    if infinitive in _UNCHANGED:
        return er + ("" if person != 2 else "t" if er[-1] in "sß" else "st")
    if person == 1:
        return root[:-2] + "le" if infinitive.endswith("eln") else root + "e"
    return er if person == 3 or er[-2] in "sßzx" else er[:-1] + "st"


@cache
def preterite(infinitive: str, person: int = 3, plural: bool = False) -> str:
    """Simple past of a verb without its separable prefix."""
    root, link = _stem(infinitive)
    base = _IRREGULAR[infinitive][1] if infinitive in _IRREGULAR else f"{root}{link}te"
    vowel = base.endswith("e")
    if person != 2:
        return base + ("" if not plural else "n" if vowel else "en")
    link = "e" if not vowel and base[-1] in ("td" if plural else "sßtdz") else ""
    return base + link + ("t" if plural else "st")


@cache
def participle(infinitive: str, prefix: str = "") -> str:
    """Past participle: gemacht, aufgemacht, verkauft, repariert."""
    if infinitive in _STRONG:
        return prefix + _STRONG[infinitive][2]
    root, link = _stem(infinitive)
    inseparable = infinitive.startswith(_INSEPARABLE) and infinitive not in _WITH_GE
    bare = infinitive.endswith("ieren") or inseparable
    return f"{prefix}{'' if bare else 'ge'}{root}{link}t"


def imperative(infinitive: str, plural: bool) -> str:
    """Informal imperative without prefix: mach, lies, warte; plural macht."""
    if plural:
        return present(infinitive, 2, True)
    if infinitive == "sein":
        return "sei"
    root, link = _stem(infinitive)
    er = _STRONG.get(infinitive, ("",))[0]
    if er[:-1] != root and "e" in root and "i" in er:  # lies, gib, but fahr
        return er[:-1]
    return root + ("e" if infinitive.endswith(("eln", "ern")) else link)


def number(value: int) -> str:
    """0 to 999 in words: ``21`` is einundzwanzig."""
    hundreds, rest = divmod(value, 100)
    if hundreds:
        return _unit(hundreds) + "hundert" + (number(rest) if rest else "")
    tens, unit = divmod(rest, 10)
    if rest < 20:
        return _NUMBERS[rest]
    return (_unit(unit) + "und" if unit else "") + _TENS[tens - 2]


def _unit(digit: int) -> str:
    return "ein" if digit == 1 else _NUMBERS[digit]
