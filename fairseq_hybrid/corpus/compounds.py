"""German compounds: the corpus' long tail.

Each group multiplies modifiers with head nouns of one class. A modifier is written with its
linking element (``Küchen`` in Küchentür) and its English word; the gender and the forms come from
the head.
"""

from __future__ import annotations

from .text import words

# (class of the heads, heads, modifiers)
COMPOUNDS: list[tuple[str, str, str]] = [
    (
        "opening",
        "Tür Fenster Tor",
        "Garten:garden Küchen:kitchen Keller:basement Schul:school Hotel:hotel Büro:office "
        "Kirchen:church Fabrik:factory Hof:courtyard Burg:fortress Laden:shop Auto:car Bus:bus "
        "Glas:glass Holz:wood Eisen:iron",
    ),
    (
        "opening",
        "Kiste Truhe Dose Paket",
        "Holz:wood Metall:metal Werkzeug:tool Spielzeug:toy Bücher:book Wein:wine Tee:tea "
        "Kaffee:coffee Obst:fruit",
    ),
    (
        "tool",
        "Schlüssel Bild Karte Spiegel Teppich",
        "Haus:house Wohnungs:apartment Zimmer:room Auto:car Keller:basement Garten:garden "
        "Stadt:city Hotel:hotel Museums:museum Büro:office Schul:school Wand:wall Land:country",
    ),
    (
        "tool",
        "Tasche Flasche Löffel Teller Becher Ring Kette Korb Schachtel",
        "Holz:wood Glas:glass Metall:metal Leder:leather Papier:paper Plastik:plastic "
        "Silber:silver Gold:gold Stoff:cloth Küchen:kitchen Reise:travel Wein:wine Milch:milk "
        "Suppen:soup",
    ),
    (
        "food",
        "Kuchen Suppe Salat Torte Marmelade Eis Soße Brot",
        "Apfel:apple Kirsch:cherry Pflaumen:plum Birnen:pear Erdbeer:strawberry Himbeer:raspberry "
        "Zitronen:lemon Orangen:orange Nuss:nut Kürbis:pumpkin Kartoffel:potato Tomaten:tomato "
        "Zwiebel:onion Gemüse:vegetable Pilz:mushroom Spargel:asparagus Käse:cheese Honig:honey "
        "Schokoladen:chocolate",
    ),
    (
        "drink",
        "Saft Tee Wein Limonade",
        "Apfel:apple Kirsch:cherry Birnen:pear Himbeer:raspberry Zitronen:lemon Orangen:orange "
        "Trauben:grape Pfirsich:peach Kräuter:herb Früchte:fruit",
    ),
    (
        "document",
        "Buch Artikel Bericht Zeitschrift Heft Geschichte Roman",
        "Kinder:children's Koch:cooking Reise:travel Sport:sports Musik:music Tier:animal "
        "Liebes:love Natur:nature Technik:technology Mode:fashion Kunst:art Abenteuer:adventure "
        "Kriegs:war Garten:garden",
    ),
    (
        "person",
        "Lehrer Lehrerin Student Studentin Professor Professorin",
        "Musik:music Sport:sports Geschichts:history Mathematik:mathematics Kunst:art "
        "Physik:physics Biologie:biology Medizin:medicine Chemie:chemistry",
    ),
    (
        "person",
        "Händler Händlerin Verkäufer Verkäuferin",
        "Auto:car Schuh:shoe Möbel:furniture Buch:book Blumen:flower Gemüse:vegetable "
        "Zeitungs:newspaper Wein:wine Teppich:carpet Pferde:horse Kunst:art Fisch:fish "
        "Käse:cheese",
    ),
    (
        "person",
        "Fahrer Fahrerin Spieler Spielerin Trainer Trainerin",
        "Bus:bus Taxi:taxi Fußball:soccer Tennis:tennis Schach:chess Handball:handball "
        "Basketball:basketball",
    ),
    (
        "clothing",
        "Jacke Mantel Schuh Hemd Kleid Mütze Hut Handschuh Schal Rock Stiefel",
        "Winter:winter Sommer:summer Regen:rain Sport:sports Kinder:children's Leder:leather "
        "Woll:wool Seiden:silk Arbeits:work Leinen:linen Baumwoll:cotton",
    ),
    (
        "vehicle",
        "Auto Bus Zug Schiff Boot Flugzeug Fahrrad",
        "Polizei:police Sport:sports Post:mail Reise:travel Nacht:night Kinder:children's "
        "Touristen:tourist Elektro:electric Miet:rental Stadt:city",
    ),
    (
        "event",
        "Fest Feier Konzert Ausflug Reise Spiel Party Kurs Prüfung Ausstellung Wettbewerb",
        "Schul:school Sommer:summer Familien:family Dorf:village Stadt:city Musik:music "
        "Winter:winter Weihnachts:Christmas Geburtstags:birthday Hochzeits:wedding "
        "Kinder:children's Tanz:dance Sport:sports",
    ),
    (
        "furniture",
        "Tisch Stuhl Schrank Regal Bank Bett",
        "Holz:wood Glas:glass Metall:metal Küchen:kitchen Garten:garden Büro:office "
        "Kinder:children's Stein:stone Bücher:book Plastik:plastic",
    ),
    (
        "device",
        "Lampe Radio Uhr Telefon Maschine Kamera",
        "Küchen:kitchen Taschen:pocket Büro:office Auto:car Wand:wall Bahnhofs:station "
        "Kirchen:church Garten:garden Hotel:hotel Straßen:street",
    ),
    (
        "animal",
        "Vogel Katze Hund Schlange Maus Frosch Ente Biene Ziege",
        "Haus:house Wald:forest Garten:garden Wasser:water Berg:mountain Wild:wild Feld:field "
        "Wüsten:desert",
    ),
    (
        "plant",
        "Baum Blume Pflanze Rose Busch",
        "Apfel:apple Kirsch:cherry Birnen:pear Pflaumen:plum Zitronen:lemon Nuss:nut "
        "Garten:garden Wald:forest Wiesen:meadow Zimmer:house Oliven:olive Kletter:climbing",
    ),
    (
        "house",
        "Haus Wohnung Turm Brücke Kirche Dach Mauer Treppe Hütte",
        "Stadt:city Dorf:village Stein:stone Holz:wood Garten:garden Ferien:vacation Glas:glass "
        "Kloster:monastery Wald:forest Berg:mountain Eisenbahn:railroad Schloss:castle",
    ),
    (
        "abstract",
        "Problem Frage Idee Plan Projekt Theorie Gesetz Regel Methode Aufgabe",
        "Wirtschafts:economic Umwelt:environmental Verkehrs:traffic Familien:family "
        "Bau:construction Schul:school Sicherheits:safety Forschungs:research Reise:travel "
        "Energie:energy Steuer:tax Lern:learning",
    ),
    (
        "place",
        "Garten Park Museum Markt Café Restaurant Hotel Laden",
        "Kunst:art Technik:technology Spielzeug:toy Auto:car Stadt:city Schloss:castle Fisch:fish "
        "Blumen:flower Dorf:village Strand:beach Tier:animal Rosen:rose Kräuter:herb "
        "Museums:museum Wein:wine",
    ),
]

# Products of the groups above that are wrong, or that have another meaning or English word.
UNWANTED = frozenset(
    words("""
Tiergarten Weinbrot Tierheft Hausmaus Kirschtee Tierpark Weingarten Museumsmuseum Dorfdorf Weintee
Zitroneneis Wildkatze Autobus Sportschiff Zimmerbaum Zimmerbusch Zimmerrose Nussblume Oliventulpe
Kletterbaum Kletterblume Apfelrose Apfelblume Kirschblume Birnenblume Birnenrose Pflaumenblume
Kletterbusch Pflaumenrose Kirschrose Zitronenrose Nussrose Olivenrose Olivenblume Apfelpflanze
Wasserbiene Kartoffelmarmelade Zwiebeltorte Zwiebelmarmelade Zwiebeleis Kartoffeleis Kartoffeltorte
Käseeis Käsemarmelade Pilzeis Pilztorte Pilzmarmelade Spargeleis Spargelmarmelade Spargeltorte
Gemüseeis Gemüsemarmelade Gemüsetorte Schokoladensalat Erdbeersuppe Himbeersuppe Honigsuppe
Pflaumensalat Kindertanz Winterhut Busspieler Busspielerin Taxispieler Taxispielerin Bustrainer
Bustrainerin Taxitrainer Taxitrainerin Fußballfahrer Fußballfahrerin Tennisfahrer Tennisfahrerin
Schachfahrer Schachfahrerin Handballfahrer Handballfahrerin Basketballfahrer Basketballfahrerin
Regenkleid Wüstenente Wüstenfrosch Bergfrosch Feldfrosch Wildfrosch Wildbiene Hausbiene Hausfrosch
Wasserkatze Wasserhund Wasserziege Wasservogel Wassermaus Gartenhund Gartenziege Steinbett Glasbett
Bücherbett Bücherstuhl Bücherbank Bücherschrank Büroküche Bürobett Straßenradio Straßentelefon
Straßenmaschine Bahnhofskamera Kirchenmaschine Kirchenradio Kirchentelefon Taschenmaschine
Taschentelefon Stadtschiff Stadtboot Stadtflugzeug Stadtzug Nachtfahrrad Nachtauto Nachtboot
Kinderflugzeug Kinderschiff Reisefahrrad Miethaus Familienprüfung Glasbrücke Waldkirche Waldmauer
Schlosskirche Gartenkirche Papierlöffel Stoffteller Suppenring Suppenkette Milchring Milchkette
Weinring Weinkette Lederteller Lederlöffel Lederbecher Papierring Reisering Reiseteller Reiselöffel
Reisekette Küchenring Küchenkette Suppentasche Suppenkorb Suppenschachtel Milchlöffel Milchteller
Milchschachtel Milchkorb Milchtasche Weinlöffel Weinteller Weinschachtel Suppenflasche Stofflöffel
Stoffflasche Papierflasche Stoffbecher Holzflasche Stoffring Papierkette Stoffkette Küchenflasche
Lederflasche Glaskorb Goldkorb Goldtasche Goldschachtel Goldflasche Silberkorb Silberflasche
Küchentasche
""")
)
