"""Adjectives: ``german english classes``, frequent first; ``_`` stands for a space.

Classes name what the adjective can describe: P persons, A animals, F food and drink, D documents
and abstract things and events, O objects and vehicles, C clothing, L places and buildings, V
plants.
"""

from __future__ import annotations

from .text import words

ADJECTIVES = """
neu new DOCL; alt old PAODCLV; gut good PFD; klein small PAOCLV; groß big PAOLV;
schön beautiful PADOCLV; jung young PA; lang long DC; interessant interesting DLP; rot red OCV;
teuer expensive OCFL; nett nice P; wichtig important DP; kalt cold FL; müde tired PA;
freundlich friendly PA; weiß white OCAV; schwarz black OCA; blau blue OCV; warm warm FCL;
schwierig difficult D; billig cheap OCF; frisch fresh F; reich rich P; arm poor P; krank sick PA;
leer empty LO; glücklich happy P; stark strong PA; leicht easy D; lecker delicious F;
grün green OCV; schnell fast A; süß sweet F; traurig sad PD; ruhig quiet PLA; berühmt famous PDL;
kaputt broken O; sauber clean OCL; schmutzig dirty OCL; modern modern OLD; klug clever PA;
dick fat PA; gelb yellow OCV; braun brown OCA; heiß hot F; langweilig boring DP; hoch tall LV;
gefährlich dangerous ADP; lustig funny PD; schwer heavy O; praktisch practical OC; dunkel dark LC;
hell bright L; wütend angry PA; hungrig hungry PA; höflich polite P; faul lazy PA;
fleißig hard-working P; ehrlich honest P; mutig brave PA; wild wild A; dumm stupid PD;
bunt colorful OCV; elegant elegant CP; nass wet OCA; trocken dry CL; laut loud PAL;
fremd strange PLD; einfach simple D; lieb dear P; bekannt well-known PDL; streng strict P;
seltsam odd PDO; gesund healthy FPA; grau gray OCA; zufrieden satisfied P; nervös nervous PA;
stolz proud P; neugierig curious PA; einsam lonely PL; bequem comfortable C; ernst serious PD;
sauer sour F; salzig salty F; scharf spicy F; bitter bitter F; selten rare DVA; nützlich useful DO;
gemütlich cozy L; breit wide L; schmal narrow L; eng tight C; tot dead AV;
altmodisch old-fashioned OCD; wertvoll valuable OD; rund round O; treu loyal PA; schüchtern shy PA;
geduldig patient P; ungeduldig impatient P; unbekannt unknown PD; verrückt crazy PD;
blind blind PA; riesig huge OLAV; winzig tiny OAV; zerbrechlich fragile O;
kompliziert complicated D; spannend exciting D; geheim secret D; offiziell official D;
überraschend surprising D; notwendig necessary D; ungewöhnlich unusual DOPV; hübsch pretty PCLV;
hässlich ugly OCLA; begabt talented P; erfahren experienced P; arrogant arrogant P;
großzügig generous P; geizig stingy P; vorsichtig careful PA; sportlich athletic P;
verletzt injured PA; dünn thin PACO; zahm tame A; giftig poisonous AV; verliebt in_love -;
beliebt popular PDL; schick stylish C; golden golden O; silbern silver O; hölzern wooden O;
eisern iron O; mittelalterlich medieval L; verlassen abandoned L; romantisch romantic DL;
politisch political D; wissenschaftlich scientific D; historisch historical DL; logisch logical D;
absurd absurd D; verdächtig suspicious PD; verschwiegen discreet P; launisch moody P;
eifersüchtig jealous P; bescheiden modest P; frech cheeky P; vornehm distinguished P;
scheu timid A; zart tender F; roh raw F; reif ripe F; verwelkt withered V; duftend fragrant V;
prächtig magnificent CLV; bescheiden modest P; abgelegen remote L; ländlich rural L;
sonnig sunny L; schattig shady L; verstaubt dusty O; rostig rusty O; zuverlässig reliable P
"""

# Gradable adjectives used in comparisons; German comparative given where it takes an umlaut.
COMPARATIVES = """
alt älter; groß größer; klein kleiner; schön schöner; jung jünger; teuer teurer; billig billiger;
interessant interessanter; stark stärker; klug klüger; reich reicher; arm ärmer; wichtig wichtiger;
schwer schwerer; alt älter; gefährlich gefährlicher; freundlich freundlicher;
langweilig langweiliger; hoch höher; fleißig fleißiger; glücklich glücklicher; berühmt berühmter;
gut besser; lustig lustiger; mutig mutiger; sauber sauberer; faul fauler; traurig trauriger;
wertvoll wertvoller; nützlich nützlicher
"""

# Adjectives that are odd before a noun or only attributive.
PREDICATIVE_ONLY = frozenset(words("verliebt"))
ATTRIBUTIVE_ONLY = frozenset(
    words("golden silbern hölzern eisern mittelalterlich wissenschaftlich politisch lieb")
)
