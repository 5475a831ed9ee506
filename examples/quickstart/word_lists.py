"""The nouns and verbs, one to an entry; an indented line goes on with the entry above.

Noun: nominative singular, gender, plural or `-` = English singular and plural. Verb: infinitive
with `|` after a separable particle, third person, participle = English base form, third person,
past, -ing form and what follows the verb. Synonyms are separated by `|`, with the probability of
each. The fields after that are explained with `Noun` and `Verb` in lexicon.py.
"""

NOUNS = """
Mann m Männer = man men : kinds person adult : adjectives alt jung müde krank : determiners den
Frau f Frauen = woman women : kinds person adult : adjectives alt jung müde krank
    : determiners den
Kind n Kinder = child children : kinds person child : adjectives klein müde krank
    : determiners denm
Junge m Jungen = boy boys : kinds person child : adjectives klein müde krank : determiners den
    : weak
Arzt m Ärzte = doctor doctors : kinds person adult : adjectives alt jung neu : determiners denm
Lehrerin f Lehrerinnen = teacher teachers : kinds person adult : adjectives jung neu krank
    : determiners denm
Student m Studenten = student students : kinds person adult : adjectives jung müde
    : determiners den : weak
Nachbar m Nachbarn = neighbor neighbors : kinds person adult : adjectives alt neu krank
    : determiners dm : weak
Bruder m Brüder = brother brothers : kinds person adult : determiners m
Schwester f Schwestern = sister sisters : kinds person adult : determiners m
Hund m Hunde = dog dogs : kinds animal pet : adjectives groß klein alt schwarz müde
    : determiners depmn
Katze f Katzen = cat cats : kinds animal pet : adjectives klein alt schwarz müde
    : determiners depmn
Vogel m Vögel = bird birds : kinds animal : adjectives groß klein schwarz schön
    : determiners depn
Pferd n Pferde = horse horses : kinds animal : adjectives groß alt schwarz schön
    : determiners depmn
Apfel m Äpfel = apple apples : kinds food : adjectives groß klein rot : determiners depn
Ei n Eier = egg eggs : kinds food : adjectives groß klein : determiners depn
Kuchen m Kuchen = cake cakes : kinds food : adjectives groß klein : determiners den
Brot n - = bread : kinds food : determiners ds
Suppe f - = soup : kinds food : adjectives kalt : determiners ds
Milch f - = milk : kinds drink : adjectives kalt : determiners ds
Kaffee m - = coffee : kinds drink : adjectives kalt : determiners ds
Wasser n - = water : kinds drink : adjectives kalt : determiners ds
Buch n Bücher = book books : kinds text gift known : adjectives alt neu lang interessant
    : determiners depn
Brief m Briefe = letter letters : kinds text : adjectives lang interessant : determiners depn
Geschichte f Geschichten = story stories : kinds text tale known
    : adjectives alt lang schön interessant : determiners depn
Film m Filme = 0.6 movie movies | 0.4 film films : kinds known
    : adjectives alt neu lang interessant : determiners depn
Auto n Autos = car cars : kinds machine : adjectives alt neu rot schwarz : determiners depmn
Fahrrad n Fahrräder = 0.7 bike bikes | 0.3 bicycle bicycles : kinds gift machine
    : adjectives alt neu rot schwarz : determiners depmn
Zug m Züge = train trains : kinds transit : adjectives lang alt : determiners den
Bus m Busse = bus buses : kinds transit : adjectives neu alt rot : determiners den
Tür f Türen = door doors : kinds opening : adjectives groß klein alt rot : determiners d
Fenster n Fenster = window windows : kinds opening : adjectives groß klein : determiners dn
Schlüssel m Schlüssel = key keys : kinds thing : adjectives alt klein : determiners denm
Tasche f Taschen = bag bags : kinds thing gift : adjectives groß rot schwarz neu
    : determiners depnm
Bild n Bilder = picture pictures : kinds gift liked : adjectives schön klein alt interessant
    : determiners depn
Haus n Häuser = house houses : kinds house room : adjectives groß klein alt neu schön
    : determiners denm : location in in
Garten m - = garden : kinds place : adjectives groß klein alt neu schön : determiners dm
    : location in in : goal in into
Park m - = park : kinds place : adjectives groß klein alt neu schön : determiners d
    : location in in : goal in to
Küche f - = kitchen : kinds place room : adjectives groß klein alt neu schön : determiners dm
    : location in in : goal in into
Büro n - = office : kinds place room : adjectives groß klein alt neu schön : determiners dm
    : location in in : goal in to
Stadt f - = city : kinds place : adjectives groß klein alt schön : determiners d
    : location in in : goal in to
Markt m - = market : kinds place : adjectives groß alt : determiners d
    : location auf at : goal auf to
Bahnhof m - = station : kinds place : adjectives groß alt neu : determiners d
    : location an at : goal zu to
Schule f - = school : kinds place : determiners d : location in at : goal in to : bare
"""

VERBS = """
schlafen schläft geschlafen = sleep sleeps slept sleeping : subjects person animal
    : places Garten Haus : manners gern
arbeiten arbeitet gearbeitet = work works worked working : subjects adult
    : places Garten Küche Büro Stadt Schule : manners gern schnell allein : company adult
spielen spielt gespielt = play plays played playing : subjects child pet
    : places Garten Park Haus Küche : manners gern allein leise : company child pet
singen singt gesungen = sing sings sang singing : subjects person
    : places Garten Küche Park Schule : manners gern leise : company person
schwimmen schwimmt geschwommen = swim swims swam swimming : subjects person pet
    : auxiliary sein : manners gern schnell allein
warten wartet gewartet = wait waits waited waiting : subjects person : frame auf
    : objects person transit : places Park Bahnhof
wohnen wohnt gewohnt = live lives lived living : subjects adult : frame location : aspect state
gehen geht gegangen = go goes went going : subjects person : frame goal : auxiliary sein
    : manners allein : company person pet
laufen läuft gelaufen = 0.6 run runs ran running | 0.4 walk walks walked walking
    : subjects person animal : frame goal : auxiliary sein : manners schnell

essen isst gegessen = eat eats ate eating : subjects person : frame acc : objects food
    : places Garten Küche Büro Park : manners gern schnell allein
trinken trinkt getrunken = drink drinks drank drinking : subjects person : frame acc
    : objects drink : places Garten Küche Büro : manners gern schnell
lesen liest gelesen = read reads read reading : subjects person : frame acc : objects text
    : places Garten Park Büro Schule : manners gern leise
schreiben schreibt geschrieben = write writes wrote writing : subjects person : frame acc
    : objects text : places Büro Küche Schule Garten : manners gern schnell
kaufen kauft gekauft = buy buys bought buying : subjects adult : frame acc
    : objects food gift machine animal : places Stadt Markt : benefit : once
verkaufen verkauft verkauft = sell sells sold selling : subjects adult : frame acc
    : objects gift machine house animal : places Stadt Markt : once
sehen sieht gesehen = see sees saw seeing : subjects person : frame acc
    : objects person animal machine : aspect simple : places Garten Park Stadt Bahnhof Markt
    : plain
suchen sucht gesucht = look looks looked looking for : subjects person : frame acc
    : objects child animal thing : places Garten Park Stadt Bahnhof Markt : once
finden findet gefunden = find finds found finding : subjects person : frame acc
    : objects thing pet gift : aspect event : places Garten Haus Park Stadt Bahnhof Markt : once
kennen kennt gekannt = know knows knew knowing : subjects person : frame acc
    : objects person known : aspect fact
brauchen braucht gebraucht = need needs needed needing : subjects adult : frame acc
    : objects thing machine : aspect simple : plain
besuchen besucht besucht = visit visits visited visiting : subjects person : frame acc
    : objects person
reparieren repariert repariert = 0.6 repair repairs repaired repairing | 0.4 fix fixes fixed fixing
    : subjects adult : frame acc : objects machine opening : places Garten
    : manners schnell allein : once

an|rufen ruft gerufen = call calls called calling : subjects person : frame acc : objects person
ab|holen holt geholt = pick picks picked picking up : subjects adult : frame acc
    : objects person : places Bahnhof Schule
ein|laden lädt geladen = invite invites invited inviting : subjects person : frame acc
    : objects person : once
zu|machen macht gemacht = close closes closed closing : subjects person : frame acc
    : objects opening : manners schnell leise
mit|bringen bringt gebracht = bring brings brought bringing : subjects person : frame acc
    : objects food gift : benefit
auf|räumen räumt geräumt
    = 0.7 clean cleans cleaned cleaning up | 0.3 tidy tidies tidied tidying up
    : subjects person : frame acc : objects room : manners schnell allein
auf|stehen steht gestanden = get gets got getting up : subjects person : auxiliary sein
    : manners schnell
an|kommen kommt gekommen = arrive arrives arrived arriving : subjects adult transit
    : auxiliary sein : places Bahnhof : plain : once

helfen hilft geholfen = help helps helped helping : subjects person : frame dat
    : places Garten Küche Büro : manners gern
danken dankt gedankt = thank thanks thanked thanking : subjects person : frame dat : once
geben gibt gegeben = give gives gave giving : subjects person : frame dat+acc
    : objects food gift thing : once
zeigen zeigt gezeigt = show shows showed showing : subjects person : frame dat+acc
    : objects text gift machine animal : once
erzählen erzählt erzählt = tell tells told telling : subjects person : frame dat+acc
    : objects tale
gefallen gefällt gefallen = like likes liked liking : subjects known liked house machine
    : frame likes : aspect state

wissen weiß gewusst = know knows knew knowing : subjects adult : frame clause : aspect fact
glauben glaubt geglaubt
    = 0.6 think thinks thought thinking | 0.4 believe believes believed believing
    : subjects adult : frame clause : aspect fact
sagen sagt gesagt = say says said saying : subjects adult : frame clause : aspect fact
regnen regnet geregnet = rain rains rained raining : subjects weather : plain
sein ist gewesen = be is was being : frame copula : aspect state
"""
