"""The toy corpus: grammar by hand-checked tables, splits and long tail by counting."""

import hashlib
import re
import sys
from collections import Counter

import english
import german
import pytest
import splits
from clauses import Clause, sentence
from jobs import TOY_CORPUS as COMMAND
from jobs import run
from lexicon import BASE, COMPOUNDS, VERBS, Adjective
from phrases import HER, ME, US, Adverbial, Agreement, Fixed, Gap, NounPhrase, Pronoun
from splits import CorpusError, generate, write

CHECKSUM = "621b043ea093d951478f3d0b9bbb3cb405dd46aad4099b9b2f819f39b98215cf"


@pytest.fixture(scope="module")
def corpus():
    return generate(seed=1, train=30000, valid=1000, test=1000)


def tokens(text):
    return re.findall(r"[\w'-]+", text)


def counts(pairs, side):
    return Counter(token for pair in pairs for token in tokens(pair[side]))


def noun(kind, lemma):
    return next(n for n in BASE[kind] + COMPOUNDS.get(kind, []) if n.de == lemma)


def verb(frame, lemma, prefix=""):
    return next(v for v in VERBS[frame].items if (v.de, v.prefix) == (lemma, prefix))


# Morphology ---------------------------------------------------------------------------------------

GOOD, TIRED, DARK = (
    Adjective("gut", "good", ""),
    Adjective("müde", "tired", ""),
    Adjective("teuer", "expensive", ""),
)


@pytest.mark.parametrize(
    ("phrase", "nominative", "accusative", "dative", "genitive"),
    [
        (
            NounPhrase(noun("person", "Mann"), adjectives=[GOOD]),
            "der gute Mann",
            "den guten Mann",
            "dem guten Mann",
            "des guten Mannes",
        ),
        (
            NounPhrase(noun("person", "Frau"), determiner="ein", adjectives=[TIRED]),
            "eine müde Frau",
            "eine müde Frau",
            "einer müden Frau",
            "einer müden Frau",
        ),
        (
            NounPhrase(noun("person", "Kind"), determiner="ein", adjectives=[GOOD]),
            "ein gutes Kind",
            "ein gutes Kind",
            "einem guten Kind",
            "eines guten Kindes",
        ),
        (
            NounPhrase(noun("person", "Student"), determiner="ein", adjectives=[GOOD]),
            "ein guter Student",
            "einen guten Studenten",
            "einem guten Studenten",
            "eines guten Studenten",
        ),
        (
            NounPhrase(noun("person", "Kind"), plural=True, determiner="ein", adjectives=[GOOD]),
            "gute Kinder",
            "gute Kinder",
            "guten Kindern",
            "guter Kinder",
        ),
        (
            NounPhrase(noun("house", "Haus"), plural=True, adjectives=[DARK]),
            "die teuren Häuser",
            "die teuren Häuser",
            "den teuren Häusern",
            "der teuren Häuser",
        ),
        (
            NounPhrase(noun("vehicle", "Auto"), determiner="poss", owner=HER, adjectives=[GOOD]),
            "ihr gutes Auto",
            "ihr gutes Auto",
            "ihrem guten Auto",
            "ihres guten Autos",
        ),
        (
            NounPhrase(noun("drink", "Wein"), determiner="ein", adjectives=[GOOD]),
            "guter Wein",
            "guten Wein",
            "gutem Wein",
            "guten Weines",
        ),
        (
            NounPhrase(noun("vehicle", "Bus"), determiner="kein", plural=True),
            "keine Busse",
            "keine Busse",
            "keinen Bussen",
            "keiner Busse",
        ),
        (
            NounPhrase(noun("opening", "Gartentür"), determiner="dies"),
            "diese Gartentür",
            "diese Gartentür",
            "dieser Gartentür",
            "dieser Gartentür",
        ),
    ],
)
def test_noun_phrases_in_all_cases(phrase, nominative, accusative, dative, genitive):
    forms = [phrase.de(case) for case in german.CASES]
    assert forms == [nominative, accusative, dative, genitive]


def test_verbs_in_ieren_have_no_ge():
    assert german.participle("reparieren") == "repariert"


def test_euer_drops_its_e():
    assert german.article("euer", "acc", "m") == "euren"
    assert german.article("euer", "nom", "m") == "euer"


@pytest.mark.parametrize(
    ("infinitive", "ich", "du", "er", "ihr", "past", "participle"),
    [
        ("machen", "mache", "machst", "macht", "macht", "machte", "gemacht"),
        ("arbeiten", "arbeite", "arbeitest", "arbeitet", "arbeitet", "arbeitete", "gearbeitet"),
        ("fahren", "fahre", "fährst", "fährt", "fahrt", "fuhr", "gefahren"),
        ("lesen", "lese", "liest", "liest", "lest", "las", "gelesen"),
        ("tanzen", "tanze", "tanzt", "tanzt", "tanzt", "tanzte", "getanzt"),
        ("lächeln", "lächle", "lächelst", "lächelt", "lächelt", "lächelte", "gelächelt"),
        ("öffnen", "öffne", "öffnest", "öffnet", "öffnet", "öffnete", "geöffnet"),
        ("verkaufen", "verkaufe", "verkaufst", "verkauft", "verkauft", "verkaufte", "verkauft"),
        ("füttern", "füttere", "fütterst", "füttert", "füttert", "fütterte", "gefüttert"),
        ("wissen", "weiß", "weißt", "weiß", "wisst", "wusste", "gewusst"),
        ("gehorchen", "gehorche", "gehorchst", "gehorcht", "gehorcht", "gehorchte", "gehorcht"),
        ("beten", "bete", "betest", "betet", "betet", "betete", "gebetet"),
        ("sein", "bin", "bist", "ist", "seid", "war", "gewesen"),
        ("haben", "habe", "hast", "hat", "habt", "hatte", "gehabt"),
        ("werden", "werde", "wirst", "wird", "werdet", "wurde", "geworden"),
    ],
)  # fmt: skip
def test_german_verbs(infinitive, ich, du, er, ihr, past, participle):
    persons = ((1, False), (2, False), (3, False), (2, True))
    assert [german.present(infinitive, *person) for person in persons] == [ich, du, er, ihr]
    assert german.preterite(infinitive, 3, False) == past
    assert german.participle(infinitive) == participle


@pytest.mark.parametrize(
    ("infinitive", "command"),
    [
        ("machen", "mach"),
        ("lesen", "lies"),
        ("geben", "gib"),
        ("fahren", "fahr"),
        ("warten", "warte"),
    ],
)
def test_imperatives(infinitive, command):
    assert german.imperative(infinitive, plural=False) == command


@pytest.mark.parametrize(
    ("number", "de", "en"),
    [
        (0, "null", "zero"),
        (1, "eins", "one"),
        (12, "zwölf", "twelve"),
        (16, "sechzehn", "sixteen"),
        (17, "siebzehn", "seventeen"),
        (21, "einundzwanzig", "twenty-one"),
        (30, "dreißig", "thirty"),
        (44, "vierundvierzig", "forty-four"),
        (67, "siebenundsechzig", "sixty-seven"),
        (100, "einhundert", "one hundred"),
        (101, "einhunderteins", "one hundred and one"),
        (376, "dreihundertsechsundsiebzig", "three hundred and seventy-six"),
        (999, "neunhundertneunundneunzig", "nine hundred and ninety-nine"),
    ],
)
def test_numbers(number, de, en):
    assert (german.number(number), english.number(number)) == (de, en)


def test_numbers_are_all_different():
    assert len({german.number(n) for n in range(1000)}) == 1000
    assert len({english.number(n) for n in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("word", "article"),
    [("apple", "an"), ("book", "a"), ("university", "a"), ("useful", "a"), ("unusual", "an"),
     ("honest", "an"), ("honey", "a"), ("ugly", "an"), ("uniform", "a"), ("email", "an")],
)  # fmt: skip
def test_a_and_an(word, article):
    assert english.indefinite(word) == article


def test_english_forms():
    assert [english.third_person(v) for v in ("go", "try", "buy", "watch", "have", "be")] == [
        "goes", "tries", "buys", "watches", "has", "is",
    ]  # fmt: skip
    assert [english.plural(n) for n in ("woman", "city", "toy", "fairy tale", "bus", "knife")] == [
        "women", "cities", "toys", "fairy tales", "buses", "knives",
    ]  # fmt: skip
    assert [english.past(v) for v in ("stop", "try", "bake", "buy", "visit")] == [
        "stopped", "tried", "baked", "bought", "visited",
    ]  # fmt: skip
    assert [english.comparative(a) for a in ("big", "old", "happy", "brave", "good", "sad")] == [
        "bigger", "older", "happier", "braver", "better", "sadder",
    ]  # fmt: skip
    assert english.comparative("interesting") == "more interesting"


# Word order ---------------------------------------------------------------------------------------


def opening(**options):
    thing = NounPhrase(noun("opening", "Fenster"))
    man = NounPhrase(noun("person", "Mann"))
    return Clause(man, verb("transitive", "machen", "auf"), object=thing, **options)


@pytest.mark.parametrize(
    ("options", "main", "final", "en"),
    [
        ({}, "der Mann macht das Fenster auf", "der Mann das Fenster aufmacht", "opens"),
        (
            {"tense": "perf"},
            "der Mann hat das Fenster aufgemacht",
            "der Mann das Fenster aufgemacht hat",
            "opened",
        ),
        (
            {"tense": "plup"},
            "der Mann hatte das Fenster aufgemacht",
            "der Mann das Fenster aufgemacht hatte",
            "had opened",
        ),
        (
            {"tense": "pret"},
            "der Mann machte das Fenster auf",
            "der Mann das Fenster aufmachte",
            "opened",
        ),
        (
            {"modal": "können"},
            "der Mann kann das Fenster aufmachen",
            "der Mann das Fenster aufmachen kann",
            "can open",
        ),
        (
            {"tense": "fut", "negated": True},
            "der Mann wird das Fenster nicht aufmachen",
            "der Mann das Fenster nicht aufmachen wird",
            "will not open",
        ),
        (
            {"modal": "müssen", "negated": True},
            "der Mann muss das Fenster nicht aufmachen",
            "der Mann das Fenster nicht aufmachen muss",
            "does not have to open",
        ),
    ],
)
def test_separable_verb(options, main, final, en):
    clause = opening(**options)
    assert clause.de_second() == main
    assert clause.de_final() == final
    assert clause.en_words() == f"the man {en} the window"


def test_inversion_question_infinitive_and_command():
    clause = opening(time=Adverbial("heute", "today"), front="time")
    assert sentence(clause.de_second()) == "Heute macht der Mann das Fenster auf."
    assert sentence(clause.en_words()) == "Today the man opens the window."
    assert sentence(opening().de_first(), "?") == "Macht der Mann das Fenster auf?"
    assert sentence(opening().en_question(), "?") == "Does the man open the window?"
    assert opening().de_infinitive() == "das Fenster aufzumachen"
    assert sentence(opening().de_imperative("du"), "!") == "Mach bitte das Fenster auf!"


def test_particle_follows_a_pronoun():
    anna = Fixed(HER, "Anna", "Anna")
    clause = Clause(anna, verb("transitive", "holen", "ab"), object=Pronoun(ME))
    assert sentence(clause.de_second()) == "Anna holt mich ab."
    assert sentence(clause.en_words()) == "Anna picks me up."


@pytest.mark.parametrize(
    ("lemma", "plural", "de", "en"),
    [
        ("Freund", False, "der Freund, auf den wir warten", "the friend whom we wait for"),
        ("Ärztin", False, "die Ärztin, auf die wir warten", "the doctor whom we wait for"),
        ("Kind", True, "die Kinder, auf die wir warten", "the children whom we wait for"),
    ],
)
def test_relative_clause_agrees_with_its_head(lemma, plural, de, en):
    head = NounPhrase(noun("person", lemma), plural=plural)
    hole = Adverbial("auf", "for", Gap(head.agree, True, "someone"), "acc")
    head.relative = Clause(Pronoun(US), verb("prepositional", "warten"), complement=hole)
    assert sentence(head.de("nom"), "") == de[0].upper() + de[1:]
    assert head.en(0) == en


def test_dative_relative_plural_is_denen():
    assert german.relative("dat", "p") == "denen"
    assert german.relative("gen", "f") == "deren"


def test_prepositions_contract():
    house = NounPhrase(noun("place", "Haus"))
    assert Adverbial("in", "in", house).de() == "im Haus"
    assert Adverbial("in", "to", house, "acc").de() == "ins Haus"
    school = NounPhrase(noun("place", "Schule"))
    assert Adverbial("zu", "to", school).de() == "zur Schule"
    assert Adverbial("in", "in", school).de() == "in der Schule"


def test_word_senses_follow_the_context():
    assert NounPhrase(noun("person", "Frau"), determiner="poss", owner=ME).en(0) == "my wife"
    assert NounPhrase(noun("person", "Frau")).en(0) == "the woman"
    assert noun("furniture", "Bank").form_de("nom", plural=True) == "Bänke"
    assert noun("place", "Bank").form_de("nom", plural=True) == "Banken"
    played = NounPhrase(noun("instrument", "Geige"), determiner="played")
    assert (played.de("acc"), played.en(1)) == ("Geige", "the violin")


def test_pronoun_follows_the_antecedent():
    table, girl = NounPhrase(noun("furniture", "Tisch")), NounPhrase(noun("person", "Mädchen"))
    assert table.agree == Agreement("er", "it")
    assert girl.agree == Agreement("es", "she")


# Corpus -------------------------------------------------------------------------------------------


def test_sizes(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == {
        "train": 30000,
        "valid": 1000,
        "test": 1000,
    }
    assert generate(train=5, valid=0, test=1)["valid"] == []


@pytest.mark.parametrize("side", [0, 1])
def test_splits_are_disjoint(corpus, side):
    train, valid, test = ({pair[side] for pair in corpus[s]} for s in ("train", "valid", "test"))
    assert not train & valid
    assert not train & test
    assert not valid & test


def test_no_pair_twice(corpus):
    for pairs in corpus.values():
        assert len(set(pairs)) == len(pairs)


def test_text_is_what_results_were_measured_on(tmp_path):
    """The documented scores rest on these bytes."""
    run(*COMMAND, tmp_path, "--seed", "3", "--train", "3000", PYTHONHASHSEED="4711").ok()
    sides = [f"{split}.{side}" for split in ("test", "train", "valid") for side in ("de", "en")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sides
    whole = b"".join((tmp_path / side).read_bytes() for side in sides)
    assert hashlib.sha256(whole).hexdigest() == CHECKSUM


def test_a_process_with_other_hashes_writes_the_same(tmp_path):
    run(*COMMAND, tmp_path, "--train", "200", "--valid", "20", "--test", "20").ok()
    here = generate(train=200, valid=20, test=20)["train"]
    assert (tmp_path / "train.de").read_text() == "".join(de + "\n" for de, _ in here)


def test_command_needs_no_torch():
    code = f"import sys; sys.path.insert(0, {COMMAND[1]!r}); import splits; print(*sys.modules)"
    loaded = run(sys.executable, "-c", code).ok().out.split()
    assert not {"torch", "numpy", "fairseq", "fairseq_hybrid"} & set(loaded)


def test_seed_matters_and_train_size_does_not_move_the_test_set():
    first = generate(seed=1, train=50, valid=10, test=10)
    assert first["test"] != generate(seed=2, train=50, valid=10, test=10)["test"]
    assert first["test"] == generate(seed=1, train=200, valid=10, test=10)["test"]


def test_vocabulary_is_a_few_thousand_with_a_long_tail(corpus):
    de, en = counts(corpus["train"], 0), counts(corpus["train"], 1)
    assert 5000 < len(de) < 10000
    assert 2000 < len(en) < 5000
    assert 0.2 < sum(n <= 2 for n in de.values()) / len(de) < 0.5
    assert 0.08 < sum(n <= 2 for n in en.values()) / len(en) < 0.5
    assert max(de.values()) / sum(de.values()) > 0.02  # and a head


def test_compounds_make_the_tail(corpus):
    seen = counts(corpus["train"], 0)
    made = {
        noun.form_de("nom", p) for nouns in COMPOUNDS.values() for noun in nouns for p in (0, 1)
    }
    found = [seen[form] for form in made if form in seen]
    assert len(found) > 1000
    assert sum(n <= 2 for n in found) / len(found) > 0.1


def test_test_words_are_known(corpus):
    for side in (0, 1):
        known, seen = counts(corpus["train"], side), counts(corpus["test"], side)
        unknown = sum(n for word, n in seen.items() if word not in known)
        assert unknown / sum(seen.values()) < 0.02


def test_lengths(corpus):
    lengths = [len(tokens(en)) for _, en in corpus["train"]]
    assert 11 <= sum(lengths) / len(lengths) <= 13
    assert min(lengths) >= 3
    assert 26 <= max(lengths) <= 40
    assert sum(length <= 8 for length in lengths) / len(lengths) > 0.15


PHENOMENA = {
    "weil": (r", weil \b|^Weil ", 0.03),
    "dass": r", dass ",
    "wenn": r"\b[Ww]enn\b",
    "obwohl": r"\b[Oo]bwohl\b",
    "relative clause": r", (der|die|das|den|dem|denen|dessen|deren) [^,.]*",
    "question": r"\?$",
    "command": r"bitte.*!$",
    "zu-infinitive": r"\bzu \w+en\b|\w+zu\w+en\b",
    "um zu": r", um ",
    "passive": r"\b(wird|wurden?|werden) .*(t|en)\.$",
    "reflexive": r"\b(sich|mich|dich)\b",
    "perfect": r"\b(hat|habe|haben|hast|habt|ist|bin|sind)\b.*\bge\w+(t|en)\b",
    "pluperfect": r"[Nn]achdem .*(t|en) (hatte|war)\w*\b",
    "modal": r"\b(kann|muss|will|soll|darf|möchte|konnte|musste|wollte|durfte)\w*\b",
    "negation": r"\b(nicht|kein\w*)\b",
    "number word": r"\b\w*(und)(zwanzig|dreißig|vierzig|fünfzig|sechzig)\b",
    "digits": r"\d",
    "title": r"\b(Herrn?|Frau) [A-ZÄÖÜ]",
    "comparison": r"\w+er als\b",
    "contraction": r"\b(im|am|zum|zur|ins|vom)\b",
    "existence": r"\b(gibt|gab) ",
    "gern": r"\bgern\b",
}


@pytest.mark.parametrize("name", PHENOMENA)
def test_phenomenon_occurs(corpus, name):
    pattern = PHENOMENA[name]
    pattern, least = pattern if isinstance(pattern, tuple) else (pattern, 0.004)
    share = sum(bool(re.search(pattern, de)) for de, _ in corpus["train"]) / 30000
    assert least < share < 0.5, share


def test_word_by_word_would_not_do(corpus):
    """In many sentences a verb form or its prefix closes a clause; English has it early."""
    verbs = [v for pool in VERBS.values() for v in pool.items]
    prefixes = {v.prefix for v in verbs if v.prefix}
    closing = {form for v in verbs for form in (v.prefix + v.de, german.participle(v.de, v.prefix))}
    closing |= {"hat", "haben", "habe", "ist", "sind", "kann", "konnte", "wird"}
    ends = [set(re.findall(r"(\w+)[.,?!]", de)) for de, _ in corpus["test"]]
    assert sum(bool(words & closing) for words in ends) / len(ends) > 0.4
    assert sum(bool(words & prefixes) for words in ends) / len(ends) > 0.03


def test_english_follows_from_german(corpus):
    translations = {}
    for pairs in corpus.values():
        for de, en in pairs:
            translations.setdefault(de, set()).add(en)
    assert all(len(found) == 1 for found in translations.values())


def test_text_is_clean(corpus):
    for pairs in corpus.values():
        for pair in pairs:
            for text in pair:
                assert re.fullmatch(r"[A-ZÄÖÜ][\wäöüÄÖÜßé ,.:'-]*[.?!]", text), text
                assert not re.search(r"  | ,|,,|,\.|\bNone\b|_", text), text


def test_a_and_an_in_the_corpus(corpus):
    for _, en in corpus["train"]:
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", en):
            if word not in ("little", "long"):
                assert article.lower() == english.indefinite(word), en


# Command ------------------------------------------------------------------------------------------


def test_command_reports_each_split(tmp_path):
    folder = tmp_path / "new" / "folder"
    out = run(*COMMAND, folder, "--train", "40", "--valid", "4", "--test", "4").ok().out
    assert [line.split(":")[0] for line in out.splitlines()] == ["train", "valid", "test"]
    assert out.startswith("train: 40 sentences, de ")
    assert len((folder / "train.en").read_text(encoding="utf-8").splitlines()) == 40
    assert len(list(folder.iterdir())) == 6  # no temporary left


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--train", "-1"], "--train -1: must not be negative"),
        (["--test", "999999999"], "--test 999999999: "),
        (["--train", "many"], "--train: invalid int value: 'many'"),
    ],
)
def test_bad_sizes(tmp_path, arguments, says):
    result = run(*COMMAND, tmp_path, *arguments)
    assert result.code == 2
    assert says in result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "below"])
def test_out_is_a_file(tmp_path, below):
    (tmp_path / "taken").write_text("mine")
    result = run(*COMMAND, tmp_path / "taken" / below, "--train", "3")
    assert result.code == 2
    assert str(tmp_path / "taken") in result.err
    assert "give a folder" in result.err
    assert result.err.count("\n") == 1
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("side", [0, 1])
def test_one_side_alone_keeps_a_pair_out_of_train(monkeypatch, side):
    """The same German with new English (or the reverse) must not cross from test to train."""
    fresh = iter(range(10**6))

    def pair(rng):
        texts = [f"Satz {next(fresh)} ist neu.", f"Satz {next(fresh)} ist neu."]
        texts[side] = "Es ist so."
        return tuple(texts)

    monkeypatch.setattr(splits, "pair", pair)
    with pytest.raises(CorpusError, match="--train 1: only 0"):
        generate(train=1, valid=0, test=1)


def test_exhausted_grammar_says_so(monkeypatch):
    monkeypatch.setattr(splits, "pair", lambda rng: ("Es ist so.", "It is so."))
    with pytest.raises(CorpusError, match="--train 2: only 1 different sentences found"):
        generate(train=2, valid=0, test=0)


def test_write_replaces_whole_files(tmp_path):
    (tmp_path / "train.de").write_text("old\n" * 1000)
    corpus = write(tmp_path, train=3, valid=1, test=1)
    lines = (tmp_path / "train.de").read_text(encoding="utf-8").splitlines()
    assert lines == [de for de, _ in corpus["train"]]
