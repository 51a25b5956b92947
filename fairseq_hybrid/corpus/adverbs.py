"""Adverbials and conjunctions: ``german = english``, frequent first."""


def _pairs(text: str) -> list[tuple[str, str]]:
    """Read ``german = english`` lines."""
    return [tuple(part.strip() for part in line.split("=")) for line in text.strip().splitlines()]


PAST_TIMES = _pairs("""
gestern = yesterday
letzte Woche = last week
letztes Jahr = last year
gestern Abend = yesterday evening
vor kurzem = recently
vorgestern = the day before yesterday
letzten Monat = last month
letzten Sommer = last summer
damals = at that time
vor langer Zeit = a long time ago
letzten Winter = last winter
letzte Nacht = last night
""")

FUTURE_TIMES = _pairs("""
morgen = tomorrow
bald = soon
nächste Woche = next week
nächstes Jahr = next year
übermorgen = the day after tomorrow
morgen früh = tomorrow morning
nächsten Monat = next month
nächsten Sommer = next summer
morgen Abend = tomorrow evening
nächsten Winter = next winter
""")

PRESENT_TIMES = _pairs("""
jeden Tag = every day
jetzt = now
jede Woche = every week
jeden Abend = every evening
jeden Morgen = every morning
zurzeit = at the moment
jedes Jahr = every year
jede Nacht = every night
""")

ANY_TIMES = _pairs("""
heute = today
am Abend = in the evening
am Morgen = in the morning
heute Abend = this evening
am Wochenende = on the weekend
im Sommer = in summer
nach der Arbeit = after work
am Nachmittag = in the afternoon
im Winter = in winter
in der Nacht = at night
vor dem Essen = before the meal
nach dem Essen = after the meal
im Frühling = in spring
im Herbst = in fall
heute Morgen = this morning
an Weihnachten = at Christmas
zu Ostern = at Easter
in den Ferien = during the vacation
""")

DAYS = _pairs("""
Montag = Monday
Freitag = Friday
Samstag = Saturday
Sonntag = Sunday
Mittwoch = Wednesday
Dienstag = Tuesday
Donnerstag = Thursday
""")

MONTHS = _pairs("""
Mai = May
Januar = January
August = August
Dezember = December
Juli = July
März = March
Juni = June
April = April
Oktober = October
September = September
Februar = February
November = November
""")

FREQUENCIES = _pairs("""
oft = often
immer = always
manchmal = sometimes
nie = never
selten = rarely
meistens = usually
fast nie = almost never
""")

MANNERS = _pairs("""
schnell = quickly
langsam = slowly
allein = alone
leise = quietly
laut = loudly
vorsichtig = carefully
heimlich = secretly
geduldig = patiently
stundenlang = for hours
ruhig = calmly
mit Freude = with joy
ohne Grund = for no reason
fröhlich = cheerfully
""")

STANCES = _pairs("""
leider = unfortunately,
vielleicht = perhaps
natürlich = of course,
zum Glück = fortunately,
hoffentlich = hopefully,
wahrscheinlich = probably
plötzlich = suddenly
offenbar = apparently,
tatsächlich = indeed,
endlich = finally
normalerweise = normally,
""")

SUBORDINATORS = _pairs("""
weil = because
wenn = if
obwohl = although
während = while
bevor = before
bis = until
damit = so that
sobald = as soon as
da = since
""")

DEGREES = _pairs("""
sehr = very
zu = too
ziemlich = quite
wirklich = really
unglaublich = incredibly
ein bisschen = a little
""")

LOCATIONS = _pairs("""
auf = on
unter = under
neben = next to
hinter = behind
vor = in front of
""")
