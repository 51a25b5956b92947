"""Nouns of the embedded corpus, by semantic class; the most frequent come first.

An entry is ``gender lemma plural english``. Gender is m, f, n, w (masculine of the weak
declension, which adds -n/-en outside the nominative) or p (plural only). A plural starting with
``+`` is a suffix, ``-`` means unchanged, ``0`` means that there is none (mass noun). A leading
``*`` also makes the feminine in -in with the same English word. ``_`` stands for a space inside
the English side.
"""

NOUNS: dict[str, str] = {
    "person": """
m Mann Männer man; f Frau +en woman; n Kind +er child; *m Lehrer - teacher; *m Freund +e friend;
w Junge +n boy; n Mädchen - girl; m Arzt Ärzte doctor; f Ärztin +nen doctor;
*w Student +en student; *w Nachbar +n neighbor; *m Schüler - pupil; *w Kollege +n colleague;
*w Kunde +n customer; p Leute - people; *m Verkäufer - seller; *w Polizist +en police_officer;
m Gast Gäste guest; *m Künstler - artist; *m Musiker - musician; *w Journalist +en journalist;
*w Tourist +en tourist; m Koch Köche cook; f Köchin +nen cook; *m Professor +en professor;
m Kellner - waiter; f Kellnerin +nen waitress; w Bauer +n farmer; f Bäuerin +nen farmer;
*m Direktor +en director; *m Fahrer - driver; *m Bäcker - baker; *m Richter - judge;
*m Maler - painter; *m Sänger - singer; m König +e king; f Königin +nen queen; w Prinz +en prince;
f Prinzessin +nen princess; *m Schriftsteller - writer; m Anwalt Anwälte lawyer;
f Anwältin +nen lawyer; *m Ingenieur +e engineer; *m Mechaniker - mechanic; *m Gärtner - gardener;
*w Soldat +en soldier; *w Pilot +en pilot; *m Minister - minister; *w Präsident +en president;
*m Bürgermeister - mayor; *m Trainer - coach; *m Spieler - player; *m Besucher - visitor;
*m Händler - dealer; *m Tänzer - dancer; m Schauspieler - actor; f Schauspielerin +nen actress;
m Zahnarzt Zahnärzte dentist; f Zahnärztin +nen dentist; *m Friseur +e hairdresser;
*w Architekt +en architect; *w Patient +en patient; *w Assistent +en assistant;
*m Arbeiter - worker; *m Wissenschaftler - scientist; *m Dieb +e thief; *w Zeuge +n witness;
n Baby +s baby; *m Dichter - poet; *m Fischer - fisherman; *m Jäger - hunter;
*m Forscher - researcher; *m Übersetzer - translator; *m Mieter - tenant; *m Besitzer - owner;
*w Komponist +en composer; *m Metzger - butcher; *m Schneider - tailor; *m Tischler - carpenter;
*m Zauberer - magician; *m Detektiv +e detective; *m Apotheker - pharmacist;
*m Briefträger - mail_carrier; *m Reporter - reporter; *m Wanderer - hiker;
*w Fotograf +en photographer; *m Autor +en author; *m Leiter - manager; *w Kandidat +en candidate;
*w Philosoph +en philosopher; *m Erfinder - inventor""",
    "kin": """
f Mutter Mütter mother; m Vater Väter father; m Bruder Brüder brother; f Schwester +n sister;
p Eltern - parents; m Sohn Söhne son; f Tochter Töchter daughter; m Onkel - uncle; f Tante +n aunt;
f Großmutter Großmütter grandmother; m Großvater Großväter grandfather;
p Großeltern - grandparents; m Cousin +s cousin; f Cousine +n cousin; w Neffe +n nephew;
f Nichte +n niece; f Familie +n family; m Chef +s boss; f Chefin +nen boss; m Enkel - grandson;
f Enkelin +nen granddaughter""",
    "animal": """
m Hund +e dog; f Katze +n cat; n Pferd +e horse; m Vogel Vögel bird; f Kuh Kühe cow;
n Schaf +e sheep; m Fisch +e fish; f Maus Mäuse mouse; n Schwein +e pig; n Huhn Hühner chicken;
w Bär +en bear; m Wolf Wölfe wolf; m Fuchs Füchse fox; f Ente +n duck; w Hase +n hare;
w Affe +n monkey; w Löwe +n lion; w Elefant +en elephant; f Ziege +n goat; m Esel - donkey;
m Tiger - tiger; f Schlange +n snake; m Frosch Frösche frog; f Biene +n bee;
m Schmetterling +e butterfly; m Igel - hedgehog; n Kaninchen - rabbit; f Gans Gänse goose;
f Eule +n owl; m Adler - eagle; m Papagei +en parrot; f Schildkröte +n turtle;
n Eichhörnchen - squirrel; m Hirsch +e deer; f Spinne +n spider; n Kamel +e camel;
m Strauß Strauße ostrich; m Schwan Schwäne swan; m Delfin +e dolphin; w Rabe +n raven""",
    "food": """
n Brot 0 bread; m Apfel Äpfel apple; m Kuchen - cake; n Ei +er egg; f Suppe +n soup;
m Käse 0 cheese; m Salat +e salad; n Fleisch 0 meat; f Kartoffel +n potato; f Tomate +n tomato;
m Reis 0 rice; n Brötchen - roll; f Wurst Würste sausage; f Banane +n banana; f Orange +n orange;
n Obst 0 fruit; f Birne +n pear; f Kirsche +n cherry; f Schokolade 0 chocolate; f Butter 0 butter;
f Torte +n cream_cake; f Erdbeere +n strawberry; n Eis 0 ice_cream; m Honig 0 honey;
f Zwiebel +n onion; f Karotte +n carrot; f Zitrone +n lemon; f Nuss Nüsse nut; f Pizza +s pizza;
f Marmelade 0 jam; m Keks +e cookie; n Gericht +e dish; f Soße +n sauce; f Pflaume +n plum;
m Pilz +e mushroom; f Gurke +n cucumber; m Pfannkuchen - pancake; m Schinken 0 ham;
m Pfirsich +e peach; f Traube +n grape; m Joghurt +s yogurt; m Braten - roast;
n Schnitzel - cutlet; n Bonbon +s candy; m Knödel - dumpling; f Melone +n melon""",
    "drink": """
n Wasser 0 water; m Kaffee 0 coffee; m Tee 0 tea; n Bier 0 beer; f Milch 0 milk; m Wein 0 wine;
m Saft 0 juice; f Limonade 0 lemonade; m Kakao 0 cocoa; m Sekt 0 sparkling_wine;
m Schnaps 0 liquor""",
    "document": """
n Buch Bücher book; m Brief +e letter; f Zeitung +en newspaper; f E-Mail +s email;
m Artikel - article; m Roman +e novel; f Geschichte +n story; m Bericht +e report;
f Nachricht +en message; m Text +e text; n Gedicht +e poem; f Zeitschrift +en magazine;
m Vertrag Verträge contract; n Rezept +e recipe; f Liste +n list; n Heft +e notebook;
f Rechnung +en bill; f Postkarte +n postcard; n Märchen - fairy_tale; n Tagebuch Tagebücher diary;
n Wörterbuch Wörterbücher dictionary; m Aufsatz Aufsätze essay; n Formular +e form;
f Anzeige +n advertisement; n Theaterstück +e play; f Anleitung +en manual""",
    "tool": """
m Schlüssel - key; f Tasche +n bag; m Ball Bälle ball; n Messer - knife; n Bild +er picture;
f Flasche +n bottle; n Geschenk +e present; m Koffer - suitcase; m Stift +e pen;
n Glas Gläser glass; f Tasse +n cup; m Teller - plate; m Löffel - spoon; f Gabel +n fork;
m Ring +e ring; f Decke +n blanket; m Korb Körbe basket; m Hammer Hämmer hammer;
f Leiter +n ladder; m Spiegel - mirror; m Topf Töpfe pot; f Kerze +n candle;
m Regenschirm +e umbrella; f Puppe +n doll; m Eimer - bucket; f Karte +n map; n Seil +e rope;
f Kette +n necklace; f Säge +n saw; m Besen - broom; n Spielzeug +e toy; f Vase +n vase;
m Rucksack Rucksäcke backpack; f Schachtel +n box; m Pinsel - brush; f Schaufel +n shovel;
m Becher - mug; n Kissen - pillow; f Nadel +n needle; f Münze +n coin; f Axt Äxte axe;
n Zelt +e tent; m Umschlag Umschläge envelope; f Fahne +n flag; n Handtuch Handtücher towel;
m Teppich +e carpet""",
    "device": """
m Computer - computer; f Lampe +n lamp; n Radio +s radio; m Fernseher - television;
f Uhr +en clock; n Handy +s cell_phone; f Maschine +n machine; f Heizung +en heater;
f Kamera +s camera; n Telefon +e phone; m Drucker - printer;
m Kühlschrank Kühlschränke refrigerator; m Herd +e stove; m Motor +en engine; m Ofen Öfen oven;
m Staubsauger - vacuum_cleaner; n Mikrofon +e microphone; m Wecker - alarm_clock""",
    "opening": """
f Tür +en door; n Fenster - window; n Tor +e gate; f Kiste +n crate; n Schloss Schlösser lock;
f Schublade +n drawer; m Safe +s safe; f Truhe +n chest; f Dose +n can; n Paket +e package""",
    "vehicle": """
n Auto +s car; m Bus +se bus; n Fahrrad Fahrräder bicycle; m Zug Züge train; n Schiff +e ship;
n Flugzeug +e airplane; n Boot +e boat; n Taxi +s taxi; f Straßenbahn +en tram;
m Lastwagen - truck; n Motorrad Motorräder motorcycle; m Traktor +en tractor; f Fähre +n ferry;
m Hubschrauber - helicopter; f Kutsche +n carriage; m Schlitten - sled; m Wohnwagen - camper""",
    "clothing": """
f Jacke +n jacket; m Mantel Mäntel coat; n Hemd +en shirt; m Schuh +e shoe; n Kleid +er dress;
m Hut Hüte hat; m Pullover - sweater; f Mütze +n cap; m Rock Röcke skirt; f Bluse +n blouse;
m Anzug Anzüge suit; m Schal +s scarf; m Handschuh +e glove; m Stiefel - boot; f Krawatte +n tie;
f Socke +n sock; m Gürtel - belt; f Weste +n vest; f Schürze +n apron; f Uniform +en uniform""",
    "furniture": """
m Tisch +e table; m Stuhl Stühle chair; n Bett +en bed; m Schrank Schränke cupboard;
n Sofa +s sofa; n Regal +e shelf; m Schreibtisch +e desk; f Bank Bänke bench; m Sessel - armchair;
n Klavier +e piano""",
    "instrument": """
n Klavier +e piano; f Gitarre +n guitar; f Geige +n violin; f Flöte +n flute;
f Trompete +n trumpet; n Cello +s cello; f Trommel +n drum; f Orgel +n organ; f Harfe +n harp;
n Saxofon +e saxophone""",
    "plant": """
m Baum Bäume tree; f Blume +n flower; f Rose +n rose; f Pflanze +n plant; m Busch Büsche bush;
f Tulpe +n tulip; f Eiche +n oak; f Tanne +n fir; m Kaktus Kakteen cactus;
f Sonnenblume +n sunflower; f Lilie +n lily; f Nelke +n carnation; f Birke +n birch;
m Strauch Sträucher shrub; f Linde +n linden""",
    "abstract": """
n Problem +e problem; f Frage +n question; f Idee +n idea; m Plan Pläne plan; f Antwort +en answer;
f Sprache +n language; m Fehler - mistake; m Grund Gründe reason; n Wort Wörter word;
m Traum Träume dream; f Aufgabe +n task; f Regel +n rule; n Thema Themen topic;
n Projekt +e project; f Entscheidung +en decision; f Lösung +en solution; f Theorie +n theory;
n Geheimnis +se secret; f Erfahrung +en experience; f Möglichkeit +en possibility;
m Vorschlag Vorschläge suggestion; n Gesetz +e law; f Methode +n method;
m Unterschied +e difference; f Meinung +en opinion; f Gefahr +en danger; n Ergebnis +se result;
n Ziel +e goal; f Warnung +en warning; m Begriff +e concept; f Lüge +n lie;
f Entdeckung +en discovery""",
    "event": """
n Fest +e festival; f Party +s party; n Konzert +e concert; n Spiel +e game; f Prüfung +en exam;
f Reise +n trip; m Film +e movie; f Feier +n celebration; f Hochzeit +en wedding;
f Sitzung +en meeting; f Ausstellung +en exhibition; n Gespräch +e conversation;
m Ausflug Ausflüge outing; m Kurs +e course; f Vorlesung +en lecture; m Krieg +e war;
n Rennen - race; m Wettbewerb +e competition; f Oper +n opera; f Wanderung +en hike;
f Konferenz +en conference; m Streik +s strike; f Wahl +en election""",
    "house": """
n Haus Häuser house; f Wohnung +en apartment; n Zimmer - room; n Gebäude - building;
n Schloss Schlösser castle; f Brücke +n bridge; m Turm Türme tower; f Kirche +n church;
f Fabrik +en factory; n Dach Dächer roof; f Mauer +n wall; f Hütte +n hut; f Treppe +n staircase;
m Brunnen - fountain; f Burg +en fortress; n Denkmal Denkmäler monument; m Palast Paläste palace;
f Garage +n garage; m Zaun Zäune fence; f Mühle +n mill; m Eingang Eingänge entrance;
m Tempel - temple""",
}

# German preposition for being there, German preposition for going there, English "be there", then
# the noun.
PLACES = """
in in in n Haus Häuser house; in in in f Stadt Städte city; in in at f Schule +n school;
in in in m Garten Gärten garden; in in in n Dorf Dörfer village;
an zu at m Bahnhof Bahnhöfe station; in in in f Küche +n kitchen; in in in m Park +s park;
in in in n Zimmer - room; in in in m Wald Wälder forest; in in at n Büro +s office;
in in in n Krankenhaus Krankenhäuser hospital; auf auf at m Markt Märkte market;
in in at n Restaurant +s restaurant; in in in f Wohnung +en apartment; in in in n Hotel +s hotel;
in in in f Kirche +n church; in in in f Bibliothek +en library; in in at n Theater - theater;
in in in n Museum Museen museum; an zu at m Flughafen Flughäfen airport; in in in n Café +s café;
an an at m See +n lake; an an at m Strand Strände beach; auf auf on f Straße +n street;
in in at f Universität +en university; in in in m Supermarkt Supermärkte supermarket;
in in in f Fabrik +en factory; an an at m Fluss Flüsse river; in in in m Keller - basement;
in in in f Bank +en bank; in in in f Bäckerei +en bakery; auf auf on m Berg +e mountain;
in in in m Laden Läden shop; auf auf on f Insel +n island; in in in n Schloss Schlösser castle;
in in in f Apotheke +n pharmacy; auf auf on f Wiese +n meadow; in in at n Kino +s movie_theater;
in in in n Tal Täler valley; auf auf on n Feld +er field; in in at m Zoo +s zoo;
an zu at f Haltestelle +n bus_stop; in in in f Werkstatt Werkstätten workshop;
in in in n Gericht +e court; in in in f Buchhandlung +en bookstore;
auf auf on m Bauernhof Bauernhöfe farm; in in in m Hafen Häfen harbor;
in in in n Gefängnis +se prison; an zu at f Kreuzung +en intersection;
auf auf on m Balkon +e balcony; in in in f Halle +n hall; an zu at f Grenze +n border;
in in in n Stadion Stadien stadium; in in in f Wüste +n desert; auf auf on f Terrasse +n terrace;
in in in m Kindergarten Kindergärten kindergarten; in in in n Rathaus Rathäuser town_hall;
an an on f Küste +n coast; in in in f Höhle +n cave; auf auf at m Friedhof Friedhöfe cemetery;
in in in f Gasse +n alley; in in in m Tunnel - tunnel;
in in in n Schwimmbad Schwimmbäder swimming_pool; auf auf on m Hügel - hill;
in in in n Stadtzentrum Stadtzentren city_center; in in in m Hof Höfe courtyard
"""
