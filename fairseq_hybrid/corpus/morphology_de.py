"""German inflection: determiners, adjectives, nouns and verbs.

Pure functions from stems and features to forms. Cases are ``nom acc dat gen``; genders ``m f n``;
the plural is a fourth column beside the genders, as in a school grammar.
"""

from __future__ import annotations

from functools import cache

from .verbs import STRONG

CASES = ("nom", "acc", "dat", "gen")
_DEF = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "den"),
    "gen": ("des", "der", "des", "der"),
}
# Endings of ein/kein/mein (mixed) and of dies-/jed- and unaccompanied adjectives (strong).
_EIN = {"nom": ("", "e", "", "e"), "acc": ("en", "e", "", "e"), "dat": ("em", "er", "em", "en")}
_EIN["gen"] = ("es", "er", "es", "er")
_DIES = {
    "nom": ("er", "e", "es", "e"),
    "acc": ("en", "e", "es", "e"),
    "dat": ("em", "er", "em", "en"),
}
_DIES["gen"] = ("es", "er", "es", "er")
_WEAK = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en",) * 4}
_WEAK["gen"] = ("en",) * 4
_MIXED = {"nom": ("er", "e", "es", "en"), "acc": ("en", "e", "es", "en"), "dat": ("en",) * 4}
_MIXED["gen"] = ("en",) * 4
_STRONG = _DIES | {"gen": ("en", "er", "en", "er")}
_ADJECTIVE = {"weak": _WEAK, "mixed": _MIXED, "strong": _STRONG}
_RELATIVE = _DEF | {
    "dat": ("dem", "der", "dem", "denen"),
    "gen": ("dessen", "deren", "dessen", "deren"),
}

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
    ("in", "das"): "ins",
    ("an", "das"): "ans",
}

# key: nominative, accusative, dative, reflexive, possessive stem, person, plural
PRONOUNS = {
    "ich": ("ich", "mich", "mir", "mich", "mein", 1, False),
    "du": ("du", "dich", "dir", "dich", "dein", 2, False),
    "er": ("er", "ihn", "ihm", "sich", "sein", 3, False),
    "sie": ("sie", "sie", "ihr", "sich", "ihr", 3, False),
    "es": ("es", "es", "ihm", "sich", "sein", 3, False),
    "wir": ("wir", "uns", "uns", "uns", "unser", 1, True),
    "ihr": ("ihr", "euch", "euch", "euch", "euer", 2, True),
    "they": ("sie", "sie", "ihnen", "sich", "ihr", 3, True),
    "Sie": ("Sie", "Sie", "Ihnen", "sich", "Ihr", 3, True),
}


def _column(gender: str, plural: bool) -> int:
    return 3 if plural else "mfn".index(gender)


def article(kind: str, case: str, gender: str, plural: bool = False) -> str:
    """A determiner: ``der``, ``dies``/``jed``, or an ein-word stem such as ``mein``."""
    column = _column(gender, plural)
    if kind == "der":
        return _DEF[case][column]
    if kind in ("dies", "jed"):
        return kind + _DIES[case][column]
    ending = _EIN[case][column]
    return ("eur" if kind == "euer" and ending else kind) + ending


def relative(case: str, gender: str, plural: bool = False) -> str:
    """The relative pronoun: der, die, das, dessen, denen."""
    return _RELATIVE[case][_column(gender, plural)]


def adjective(stem: str, declension: str, case: str, gender: str, plural: bool = False) -> str:
    """An attributive adjective; ``declension`` is weak, mixed or strong."""
    if stem.endswith("el"):
        stem = stem[:-2] + "l"
    elif stem.endswith(("euer", "auer")):
        stem = stem[:-2] + "r"
    elif stem == "hoch":
        stem = "hoh"
    elif stem.endswith("e"):
        stem = stem[:-1]
    return stem + _ADJECTIVE[declension][case][_column(gender, plural)]


def syllables(word: str) -> int:
    """Count vowel groups, which is near enough to syllables for choosing -s or -es."""
    count, inside = 0, False
    for letter in word.lower():
        vowel = letter in "aeiouäöüyé"
        count += vowel and not inside
        inside = vowel
    return count


def genitive(lemma: str) -> str:
    """Genitive singular of a strong masculine or neuter."""
    if lemma.endswith("nis"):
        return lemma + "ses"
    if lemma.endswith(("Bus", "bus")):
        return lemma + "ses"
    if lemma.endswith("tus"):  # Kaktus
        return lemma
    if lemma.endswith(("s", "ß", "z", "x")):
        return lemma + "es"
    native = lemma[-1] not in "aeiouyéh" and lemma not in (
        "Park",
        "Chef",
        "Film",
        "Text",
        "Schal",
        "Streik",
        "Kurs",
    )
    return lemma + ("es" if native and syllables(lemma) == 1 else "s")


def noun(lemma: str, plural_form: str, gender: str, weak: bool, case: str, plural: bool) -> str:
    """A noun form; ``plural_form`` is the nominative plural."""
    if plural:
        add_n = case == "dat" and not plural_form.endswith(("n", "s"))
        return plural_form + "n" if add_n else plural_form
    if weak and case != "nom":
        return plural_form
    if case == "gen" and gender in "mn":
        return genitive(lemma)
    return lemma


def _strong_table() -> dict[str, tuple[str, str, str]]:
    rows = (entry.split() for entry in STRONG.split(";"))
    return {infinitive: (er, past, participle) for infinitive, er, past, participle in rows}


_STRONG_VERBS = _strong_table()
_INSEPARABLE = (
    "be",
    "ver",
    "er",
    "ent",
    "zer",
    "ge",
    "emp",
    "miss",
    "wider",
    "übersetz",
    "überrasch",
    "übernacht",
)
_INSEPARABLE += ("unterstütz", "untersuch", "überleg", "wiederhol")
_GE_VERBS = ("gehen", "geben", "beten", "bellen", "erben", "gießen", "beißen")
_MODALS = {
    "können": ("kann", "konnte"),
    "müssen": ("muss", "musste"),
    "wollen": ("will", "wollte"),
    "sollen": ("soll", "sollte"),
    "dürfen": ("darf", "durfte"),
    "möchten": ("möchte", "wollte"),
}
_SEIN = {(1, False): "bin", (2, False): "bist", (3, False): "ist", (2, True): "seid"}


def stem(infinitive: str) -> str:
    """The infinitive without -en or -n."""
    return infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]


def _needs_e(root: str) -> bool:
    """Stems in -t, -d or consonant + n/m take a linking e: arbeitet, öffnet, zeichnet."""
    if root.endswith(("t", "d")):
        return True
    return (root[-1] in "nm" and root[-2] not in "aeiouäöülrhnm") or root.endswith(("chn", "ckn"))


def _du(infinitive: str, er: str) -> str:
    root = stem(infinitive)
    if infinitive == "haben":
        return "hast"
    if infinitive == "werden":
        return "wirst"
    if infinitive == "wissen":
        return "weißt"
    if er == root + "t" or er == root + "et":  # regular
        if root.endswith(("s", "ß", "z", "x")):
            return root + "t"
        return er[:-1] + "st"
    return er if er[:-1].endswith(("s", "ß")) else er[:-1] + "st"


@cache
def present(infinitive: str, person: int, plural: bool) -> str:
    """Present tense of a verb without its separable prefix."""
    if infinitive in _MODALS:
        singular = _MODALS[infinitive][0]
        if plural:
            return (
                infinitive
                if person != 2
                else stem(infinitive) + ("et" if stem(infinitive)[-1] == "t" else "t")
            )
        return singular if person != 2 else singular + ("t" if singular.endswith("s") else "st")
    if infinitive == "sein":
        return _SEIN.get((person, plural), "sind")
    root = stem(infinitive)
    regular = root + ("et" if _needs_e(root) else "t")
    er = _STRONG_VERBS[infinitive][0] if infinitive in _STRONG_VERBS else regular
    if plural:
        return regular if person == 2 else infinitive
    if person == 1:
        if infinitive == "wissen":
            return "weiß"
        return root[:-2] + "le" if infinitive.endswith("eln") else root + "e"
    return er if person == 3 else _du(infinitive, er)


@cache
def preterite(infinitive: str, person: int, plural: bool) -> str:
    """Simple past of a verb without its separable prefix."""
    if infinitive in _MODALS:
        base = _MODALS[infinitive][1]
    elif infinitive in _STRONG_VERBS:
        base = _STRONG_VERBS[infinitive][1]
    else:
        root = stem(infinitive)
        base = root + ("ete" if _needs_e(root) else "te")
    if person == 2:
        if base.endswith("e"):
            return base + ("t" if plural else "st")
        if plural:
            return base + ("et" if base[-1] in "td" else "t")
        return base + ("est" if base[-1] in "sßtdz" else "st")
    if plural:
        return base + ("n" if base.endswith("e") else "en")
    return base


@cache
def participle(infinitive: str, prefix: str = "") -> str:
    """Past participle: gemacht, aufgemacht, verkauft, repariert."""
    if infinitive in _STRONG_VERBS:
        return prefix + _STRONG_VERBS[infinitive][2]
    root = stem(infinitive)
    ending = "et" if _needs_e(root) else "t"
    bare = infinitive.endswith("ieren") or (
        infinitive.startswith(_INSEPARABLE) and infinitive not in _GE_VERBS
    )
    return prefix + ("" if bare else "ge") + root + ending


def imperative(infinitive: str, plural: bool) -> str:
    """Informal imperative without prefix: mach, lies, warte; plural macht."""
    if plural:
        return "seid" if infinitive == "sein" else present(infinitive, 2, True)
    root = stem(infinitive)
    if infinitive == "sein":
        return "sei"
    er = _STRONG_VERBS.get(infinitive, ("",))[0]
    if er and _changes_e_to_i(root, er):
        return er[:-1]
    return root + ("e" if _needs_e(root) or infinitive.endswith(("eln", "ern")) else "")


def _changes_e_to_i(root: str, er: str) -> bool:
    """Only e→i(e) verbs keep the changed vowel in the imperative: lies, gib, but fahr."""
    return er[:-1] != root and "e" in root and "i" in er
