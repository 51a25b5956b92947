"""Proper names: people, cities and countries; frequent first."""

from __future__ import annotations

from .text import words

WOMEN = words("""
Anna Maria Julia Lena Laura Sophie Lisa Sarah Katharina Eva Clara Emma Marie Claudia Petra Sabine
Monika Hanna Johanna Paula Ingrid Charlotte Helga Martina Andrea Nina Greta Ursula Birgit Franziska
Susanne Theresa Amelie Renate Vera Elena Magdalena Rosa Frieda Luise Mathilda Antonia Karin Barbara
Silke Melanie Jana Carolin Dorothea Elisabeth Gisela Heike Ida Judith Kerstin Leonie
""")

MEN = words("""
Peter Paul Max Martin Jan Michael David Stefan Daniel Felix Leon Jonas Simon Karl Otto Georg
Andreas Christian Florian Robert Walter Werner Heinrich Friedrich Oskar Anton Emil Jakob Philipp
Tim Tom Sebastian Alexander Bernd Dieter Erik Günther Hermann Ingo Joachim Kurt Ludwig Manfred
Norbert Oliver Rolf Stephan Torsten Uwe Viktor Wolfgang Konrad Julian Benjamin Gustav Albert
Richard
""")

FAMILIES = words("""
Müller Schmidt Schneider Fischer Weber Meyer Wagner Becker Schulz Hoffmann Schäfer Koch Bauer
Richter Klein Wolf Schröder Neumann Schwarz Zimmermann Braun Krüger Hofmann Hartmann Lange Werner
Krause Lehmann Köhler Maier Huber Kaiser Fuchs Peters Lang Scholz Möller Weiß Jung Hahn Schubert
Vogel Friedrich Keller Günther Frank Berger Winkler Roth Beck Lorenz Baumann Franke Albrecht
Schuster Simon Ludwig Böhm Winter Kraus Schumacher Krämer Vogt Stein Jäger Sommer Groß Seidel
Heinrich Brandt Haas Schreiber Graf Dietrich Ziegler Kuhn Kühn Pohl Engel Horn Busch Bergmann
Thomas Voigt Sauer Arnold Wolff Pfeiffer
""")

# german:english where they differ
CITIES = words("""
Berlin München:Munich Hamburg Köln:Cologne Wien:Vienna Paris London Frankfurt Rom:Rome Leipzig
Dresden Zürich:Zurich Prag:Prague Stuttgart Bremen Salzburg Madrid Moskau:Moscow Nürnberg:Nuremberg
Brüssel:Brussels Warschau:Warsaw Genf:Geneva Lissabon:Lisbon Athen:Athens Venedig:Venice
Kopenhagen:Copenhagen Hannover:Hanover Bonn Basel Kairo:Cairo Tokio:Tokyo Mailand:Milan
Florenz:Florence Heidelberg Freiburg Stockholm Oslo Dublin Budapest Peking:Beijing Boston Chicago
Neapel:Naples Straßburg:Strasbourg Graz Linz Weimar Erfurt Kiel Rostock Augsburg Mainz Münster
Potsdam Bern Luzern:Lucerne Krakau:Krakow Bukarest:Bucharest Helsinki Edinburgh Lyon Nizza:Nice
Barcelona Sevilla:Seville Turin
""")

COUNTRIES = words("""
Deutschland:Germany Frankreich:France Italien:Italy Österreich:Austria Spanien:Spain England
Amerika:America Polen:Poland Griechenland:Greece China Japan Russland:Russia Schweden:Sweden
Norwegen:Norway Dänemark:Denmark Portugal Ungarn:Hungary Indien:India Ägypten:Egypt
Brasilien:Brazil Kanada:Canada Australien:Australia Mexiko:Mexico Irland:Ireland
Schottland:Scotland Finnland:Finland Belgien:Belgium Kroatien:Croatia Rumänien:Romania
Afrika:Africa Argentinien:Argentina Bulgarien:Bulgaria Island:Iceland Marokko:Morocco Kenia:Kenya
Vietnam Kuba:Cuba Bayern:Bavaria Sachsen:Saxony
""")

# Countries that take an article in German: "in die Schweiz", "in der Schweiz".
ARTICLE_COUNTRIES = words("""
Schweiz:Switzerland Türkei:Turkey Ukraine:Ukraine Slowakei:Slovakia
""")
