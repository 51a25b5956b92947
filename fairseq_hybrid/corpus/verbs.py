"""Verbs of the embedded corpus, by frame; frequent first.

``|`` inside a German verb marks a separable prefix, ``sich`` a reflexive. In English ``~`` marks a
particle that follows a pronoun ("turn it on"). Fields are separated by ``;``: German; English;
subject classes; object classes; and for some frames the preposition. ``someone`` is person, kin,
names and pronouns.
"""

from __future__ import annotations

from .text import words

INTRANSITIVE = """
arbeiten; work; someone
schlafen; sleep; someone animal
lachen; laugh; someone
kochen; cook; someone
singen; sing; someone
auf|stehen; get up; someone
an|kommen; arrive; someone vehicle
ein|kaufen; go shopping; someone
tanzen; dance; someone
weinen; cry; someone
zurück|kommen; come back; someone
fern|sehen; watch television; someone
schwimmen; swim; someone
ein|schlafen; fall asleep; someone animal
ab|fahren; depart; vehicle
an|fangen; start; event
auf|wachen; wake up; someone animal
sich aus|ruhen; rest; someone
frühstücken; have breakfast; someone
lächeln; smile; someone
weg|gehen; go away; someone
sich setzen; sit down; someone
reisen; travel; someone
sich beeilen; hurry; someone
aus|gehen; go out; someone
um|ziehen; move; someone
auf|hören; stop; event
statt|finden; take place; event
funktionieren; work; device
mit|kommen; come along; someone
rauchen; smoke; someone
blühen; bloom; plant
wachsen; grow; plant
schreien; shout; someone
sich hin|legen; lie down; someone animal
kaputt|gehen; break; device vehicle
schweigen; be silent; someone
sterben; die; someone animal plant
sich erkälten; catch a cold; someone
beten; pray; someone
sich verlaufen; get lost; someone
sich irren; be wrong; someone
sich verspäten; be late; someone
sich erholen; recover; someone
weg|laufen; run away; someone animal
ein|steigen; get in; someone
aus|steigen; get out; someone
sich verstecken; hide; someone animal
zu|nehmen; gain weight; someone animal
ab|nehmen; lose weight; someone animal
enden; end; event
bellen; bark; dog
sich schämen; be ashamed; someone
stolpern; stumble; someone
zittern; tremble; someone animal
niesen; sneeze; someone
"""

TRANSITIVE = """
kaufen; buy; someone; food clothing tool document vehicle furniture device house plant
sehen; see; someone; person animal vehicle house plant
lesen; read; someone; document
finden; find; someone; tool document animal clothing
essen; eat; someone; food
trinken; drink; someone; drink
besuchen; visit; someone; person kin
schreiben; write; someone; document
suchen; look for; someone; tool person animal clothing document
haben; have; someone; tool vehicle device animal house document
kennen; know; someone; person kin document
auf|machen; open; someone; opening
verkaufen; sell; someone; vehicle house tool clothing furniture food animal
zu|machen; close; someone; opening
lieben; love; someone; kin person animal
an|rufen; call; someone; person kin
bekommen; get; someone; document tool
brauchen; need; someone; tool device vehicle clothing
verstehen; understand; someone; abstract document person
reparieren; repair; someone; device vehicle furniture lock
treffen; meet; someone; person kin
fragen; ask; someone; person kin
ab|holen; pick~up; someone; person kin package
an|machen; turn~on; someone; device
aus|machen; turn~off; someone; device
verlieren; lose; someone; tool clothing document
vergessen; forget; someone; tool abstract clothing
machen; make; someone; mistake food
kochen; cook; someone; hotfood
spielen; play; someone; playable
bauen; build; someone; house furniture
hören; hear; someone; animal person instrument
mit|bringen; bring along; someone; food tool drink document
lernen; learn; someone; language
fahren; drive; someone; car
waschen; wash; someone; clothing vehicle
malen; paint; someone; house plant animal person
verlassen; leave; someone; house person
öffnen; open; someone; opening document
an|ziehen; put~on; someone; clothing
aus|ziehen; take~off; someone; clothing
zerstören; destroy; someone; house vehicle device
erklären; explain; someone; abstract
ein|laden; invite; someone; person kin
besichtigen; tour; someone; house
backen; bake; someone; baked
putzen; clean; someone; furniture house opening
probieren; taste; someone; food drink
stehlen; steal; someone; tool vehicle animal device
tragen; wear; someone; clothing
bestellen; order; someone; food drink document
aus|wählen; select; someone; clothing document tool
beobachten; observe; someone; animal person
vor|bereiten; prepare; someone; event food
auf|schließen; unlock; someone; opening
ab|schließen; lock; someone; opening
bezahlen; pay for; someone; food tool clothing
wiederholen; repeat; someone; abstract
lösen; solve; someone; puzzle
weg|werfen; throw~away; someone; document food tool
aus|leihen; borrow; someone; document vehicle tool
ab|lehnen; reject; someone; abstract
füttern; feed; someone; animal
unterschreiben; sign; someone; document
übersetzen; translate; someone; document
schneiden; cut; someone; food
ein|packen; pack; someone; clothing tool
aus|packen; unpack; someone; tool package
auf|hängen; hang~up; someone; clothing
pflanzen; plant; someone; plant
gießen; water; someone; plant
jagen; hunt; animal; animal
fressen; eat; animal; food
beißen; bite; animal; person animal
verfolgen; chase; someone animal; person animal
begrüßen; greet; someone; person kin
kritisieren; criticize; someone; person abstract document
loben; praise; someone; person document
unterstützen; support; someone; person kin abstract
retten; rescue; someone; animal person
entdecken; discover; someone; abstract animal plant
erfinden; invent; someone; device
verschieben; postpone; someone; event
ab|sagen; cancel; someone; event
organisieren; organize; someone; event
verpassen; miss; someone; vehicle event
genießen; enjoy; someone; event food
planen; plan; someone; event house
fotografieren; photograph; someone; animal house person
verstecken; hide; someone; tool document
zählen; count; someone; tool animal
verteilen; distribute; someone; document
untersuchen; examine; someone; person animal abstract
sammeln; collect; someone; plant tool
benutzen; use; someone; tool device
leiten; lead; someone; abstract event
bewundern; admire; someone; person house plant
verbessern; improve; someone; abstract document
überraschen; surprise; someone; person kin
verletzen; injure; someone animal; person animal
zeichnen; draw; someone; plant animal house
wecken; wake~up; someone; person kin
erschrecken; frighten; animal; person
verhaften; arrest; someone; person
renovieren; renovate; someone; house
vermieten; rent~out; someone; house vehicle
schälen; peel; someone; peelable
"""

# Objects in the dative.
DATIVE = """
helfen; help; someone; person kin
danken; thank; someone; person kin
folgen; follow; someone animal; person animal
glauben; believe; someone; person kin
vertrauen; trust; someone; person kin
zu|hören; listen to; someone; person kin
gratulieren; congratulate; someone; person kin
begegnen; encounter; someone; person animal
antworten; answer; someone; person kin
zu|sehen; watch; someone; person animal
verzeihen; forgive; someone; person kin
drohen; threaten; someone; person
gehorchen; obey; someone; person kin
widersprechen; contradict; someone; person kin
nach|laufen; run after; animal; person animal
"""

# Preposition and case, English preposition.
PREPOSITIONAL = """
warten; wait; someone; person vehicle kin; auf acc for
sprechen; speak; someone; person kin; mit dat with
denken; think; someone; person kin abstract; an acc of
sich freuen; look forward; someone; event; auf acc to
träumen; dream; someone; animal house vehicle; von dat of
spielen; play; someone; person animal tool; mit dat with
sich interessieren; be interested; someone; abstract document; für acc in
lachen; laugh; someone; person abstract; über acc about
sich erinnern; remember; someone; person event; an acc -
Angst|haben; be afraid; someone; animal event; vor dat of
auf|passen; take care; someone; animal kin; auf acc of
achten; pay attention; someone; abstract; auf acc to
sich kümmern; look; someone; animal kin person plant; um acc after
sich ärgern; be annoyed; someone; person abstract; über acc at
an|fangen; begin; someone; abstract event; mit dat with
telefonieren; talk on the phone; someone; person kin; mit dat with
bitten; ask; someone; document drink; um acc for
sich verlieben; fall in love; someone; person; in acc with
sich gewöhnen; get used; someone; abstract device; an acc to
teil|nehmen; take part; someone; event; an dat in
kämpfen; fight; someone; person animal; gegen acc against
sich beschweren; complain; someone; person event; über acc about
leiden; suffer; someone; abstract; unter dat from
sich vor|bereiten; prepare; someone; event; auf acc for
sich entscheiden; decide; someone; abstract clothing; für acc on
sorgen; care; someone; kin animal; für acc for
sich streiten; quarrel; someone; person kin; mit dat with
sich verabschieden; say goodbye; someone; person kin; von dat to
verzichten; do without; someone; drink; auf acc -
nach|denken; reflect; someone; abstract event; über acc on
"""

# Dative person, accusative thing; "to" says English wants the person after the thing.
DITRANSITIVE = """
geben; give; someone; tool document food
zeigen; show; someone; tool document house clothing
schenken; give; someone; plant clothing animal
schicken; send; someone; document package
bringen; bring; someone; food drink tool
erzählen; tell; someone; story
erklären; explain; someone; abstract; to
leihen; lend; someone; vehicle tool document
empfehlen; recommend; someone; food event document; to
verkaufen; sell; someone; vehicle house animal
kaufen; buy; someone; clothing tool food
vor|lesen; read; someone; document
versprechen; promise; someone; package animal
an|bieten; offer; someone; food drink
zurück|geben; give back; someone; tool document clothing; to
beschreiben; describe; someone; house person; to
vor|stellen; introduce; someone; person kin; to
schulden; owe; someone; answer
"""

MOTION = """
gehen; go; someone
fahren; drive; someone
kommen; come; someone
laufen; run; someone animal
fliegen; fly; someone
zurück|gehen; go back; someone
reisen; travel; someone
rennen; dash; someone animal
zurück|fahren; drive back; someone
wandern; hike; someone
"""

STATIVE = """
wohnen; live; someone
arbeiten; work; someone
sitzen; sit; someone animal
stehen; stand; someone vehicle
warten; wait; someone
bleiben; stay; someone
schlafen; sleep; someone animal
spielen; play; someone animal
liegen; lie; someone animal
übernachten; spend the night; someone
tanzen; dance; someone
leben; live; animal someone
spazieren|gehen; go for a walk; someone
"""

# Placing things: "stellen auf", with a two-way preposition and accusative.
PUT = """
legen; put; someone; document clothing tool
stellen; put; someone; tool device
werfen; throw; someone; tool document clothing
hängen; hang; someone; clothing tool
"""

# Verbs with a finite clause: conjunction.
SAYING = """
sagen; say; dass
wissen; know; dass
glauben; believe; dass
hoffen; hope; dass
denken; think; dass
wissen; know; ob
fragen; ask; ob
erzählen; report; dass
meinen; think; dass
vergessen; forget; dass
bemerken; notice; dass
sich freuen; be glad; dass
behaupten; claim; dass
befürchten; fear; dass
vermuten; suspect; dass
vor|schlagen; suggest; dass
sich wundern; be surprised; dass
ahnen; sense; dass
heraus|finden; find out; dass
überlegen; consider; ob
prüfen; check; ob
erfahren; learn; dass
"""

# Verbs with a zu-infinitive; English takes "to".
INTENDING = """
versuchen; try
hoffen; hope
vergessen; forget
beginnen; begin
beschließen; decide
vor|haben; intend
versprechen; promise
planen; plan
an|fangen; start
sich weigern; refuse
sich entscheiden; choose
lernen; learn
sich bemühen; strive
"""

# Infinitive, er-form, preterite, participle, all without separable prefix.
STRONG = """
backen backt backte gebacken; beginnen beginnt begann begonnen; beißen beißt biss gebissen;
bekommen bekommt bekam bekommen; beschließen beschließt beschloss beschlossen;
beschreiben beschreibt beschrieb beschrieben; bieten bietet bot geboten; bitten bittet bat gebeten;
bleiben bleibt blieb geblieben; bringen bringt brachte gebracht; denken denkt dachte gedacht;
empfehlen empfiehlt empfahl empfohlen; entscheiden entscheidet entschied entschieden;
erfahren erfährt erfuhr erfahren; erfinden erfindet erfand erfunden; essen isst aß gegessen;
fahren fährt fuhr gefahren; fangen fängt fing gefangen; finden findet fand gefunden;
fliegen fliegt flog geflogen; fressen frisst fraß gefressen; geben gibt gab gegeben;
gehen geht ging gegangen; genießen genießt genoss genossen; gießen gießt goss gegossen;
haben hat hatte gehabt; helfen hilft half geholfen; kennen kennt kannte gekannt;
kommen kommt kam gekommen; laden lädt lud geladen; laufen läuft lief gelaufen;
leiden leidet litt gelitten; leihen leiht lieh geliehen; lesen liest las gelesen;
liegen liegt lag gelegen; nehmen nimmt nahm genommen; rennen rennt rannte gerannt;
riechen riecht roch gerochen; rufen ruft rief gerufen; schieben schiebt schob geschoben;
schlafen schläft schlief geschlafen; schlagen schlägt schlug geschlagen;
schließen schließt schloss geschlossen; schneiden schneidet schnitt geschnitten;
schreiben schreibt schrieb geschrieben; schreien schreit schrie geschrien;
schweigen schweigt schwieg geschwiegen; schwimmen schwimmt schwamm geschwommen;
sehen sieht sah gesehen; sein ist war gewesen; singen singt sang gesungen;
sitzen sitzt saß gesessen; sprechen spricht sprach gesprochen; stehen steht stand gestanden;
stehlen stiehlt stahl gestohlen; steigen steigt stieg gestiegen; sterben stirbt starb gestorben;
streiten streitet stritt gestritten; tragen trägt trug getragen; treffen trifft traf getroffen;
trinken trinkt trank getrunken; unterschreiben unterschreibt unterschrieb unterschrieben;
vergessen vergisst vergaß vergessen; verlassen verlässt verließ verlassen;
verlaufen verläuft verlief verlaufen; verlieren verliert verlor verloren;
verschieben verschiebt verschob verschoben; versprechen verspricht versprach versprochen;
verstehen versteht verstand verstanden; verzeihen verzeiht verzieh verziehen;
wachsen wächst wuchs gewachsen; waschen wäscht wusch gewaschen; werden wird wurde geworden;
werfen wirft warf geworfen; widersprechen widerspricht widersprach widersprochen;
wissen weiß wusste gewusst; ziehen zieht zog gezogen
"""

# Perfect with sein; separable verbs are listed with their prefix.
SEIN_PERFECT = frozenset(
    words("""
auf|stehen an|kommen zurück|kommen schwimmen ein|schlafen ab|fahren auf|wachen weg|gehen reisen
aus|gehen um|ziehen mit|kommen wachsen kaputt|gehen sterben weg|laufen ein|steigen aus|steigen
stolpern folgen begegnen nach|laufen gehen fahren kommen laufen fliegen zurück|gehen rennen
zurück|fahren wandern ziehen bleiben sein werden spazieren|gehen
""")
)
