"""English inflection: articles, plurals, verb forms and comparatives."""

from __future__ import annotations

from .text import words

_PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "mouse": "mice",
    "goose": "geese",
    "sheep": "sheep",
    "fish": "fish",
    "deer": "deer",
    "knife": "knives",
    "wolf": "wolves",
    "shelf": "shelves",
    "thief": "thieves",
    "fisherman": "fishermen",
    "scarf": "scarves",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "loaf": "loaves",
    "cactus": "cacti",
    "people": "people",
    "parents": "parents",
    "grandparents": "grandparents",
}

# base: past, participle
_IRREGULAR_ROWS = """
be was been; have had had; do did done; go went gone; come came come; see saw seen; get got gotten;
buy bought bought; read read read; find found found; eat ate eaten; drink drank drunk;
write wrote written; know knew known; sell sold sold; understand understood understood;
meet met met; lose lost lost; forget forgot forgotten; make made made; build built built;
hear heard heard; bring brought brought; drive drove driven; leave left left; steal stole stolen;
wear wore worn; pay paid paid; throw threw thrown; cut cut cut; hang hung hung; feed fed fed;
bite bit bitten; sleep slept slept; sing sang sung; fall fell fallen; swim swam swum;
wake woke woken; sit sat sat; take took taken; grow grew grown; break broke broken;
catch caught caught; lie lay lain; run ran run; hide hid hidden; speak spoke spoken;
think thought thought; fight fought fought; say said said; give gave given; show showed shown;
send sent sent; tell told told; lend lent lent; fly flew flown; stand stood stood;
spend spent spent; put put put; begin began begun; choose chose chosen; draw drew drawn;
lead led led; strive strove striven; forgive forgave forgiven; cost cost cost
"""
_IRREGULAR = {row.split()[0]: tuple(row.split()[1:]) for row in _IRREGULAR_ROWS.split(";")}
_DOUBLING = frozenset(words("stop plan hug nod rob pat chat regret admit"))

# key: subject, object, possessive
PRONOUNS = {
    "I": ("I", "me", "my"),
    "you": ("you", "you", "your"),
    "he": ("he", "him", "his"),
    "she": ("she", "her", "her"),
    "it": ("it", "it", "its"),
    "we": ("we", "us", "our"),
    "they": ("they", "them", "their"),
}
_SINGULAR = frozenset(("he", "she", "it"))


def indefinite(following: str) -> str:
    """``a`` or ``an`` before the given word, by sound."""
    word = following.lower()
    if word.startswith(("uni", "use", "eu", "one")) and not word.startswith("unin"):
        return "a"
    return "an" if word[0] in "aeiou" or word.startswith(("honest", "honor", "hour")) else "a"


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def plural(noun: str) -> str:
    """Plural of a noun, the last word being the head: fairy tales, police officers."""
    *front, head = noun.split(" ")
    return " ".join([*front, _PLURALS.get(head) or _add_s(head)])


def third_person(base: str) -> str:
    """He-form of the present: goes, has, tries."""
    if base in ("be", "have"):
        return {"be": "is", "have": "has"}[base]
    return base + "es" if base.endswith("o") else _add_s(base)


def present(base: str, subject: str) -> str:
    """Present tense of one word for a pronoun key such as ``I`` or ``they``."""
    if base == "be":
        return "am" if subject == "I" else "is" if subject in _SINGULAR else "are"
    return third_person(base) if subject in _SINGULAR else base


def past(base: str, subject: str = "it") -> str:
    """Simple past."""
    if base == "be":
        return "was" if subject == "I" or subject in _SINGULAR else "were"
    return _IRREGULAR[base][0] if base in _IRREGULAR else _regular(base)


def participle(base: str) -> str:
    """Past participle."""
    return _IRREGULAR[base][1] if base in _IRREGULAR else _regular(base)


def _regular(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + base[-1] + "ed" if base in _DOUBLING else base + "ed"


def comparative(word: str) -> str:
    """bigger, happier, more interesting."""
    if word in ("good", "sad"):
        return {"good": "better", "sad": "sadder"}[word]
    if word.endswith("y") and word != "lonely":
        return word[:-1] + "ier"
    if len(word) > 6 or word in ("famous", "honest", "useful", "boring"):
        return "more " + word
    if word.endswith("e"):
        return word + "r"
    if len(word) == 3 and word[-1] not in "wyd" and word[-2] in "aeiou":
        return word + word[-1] + "er"
    return word + "er"
