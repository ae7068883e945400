"""Words and sentences of the miniature CLEF-IP collection: eight themes in three languages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LANGUAGES = ("EN", "DE", "FR")


class Noun(NamedTuple):
    """A noun with what sentences put before it. Attributes are named after English and French masculine articles."""

    bare: str
    a: str  # a, nominative ein, un
    the: str  # the, nominative der, le
    accusative: str = ""  # einen
    einem: str = ""
    den: str = ""
    dem: str = ""
    du: str = ""
    au: str = ""
    e: str = ""  # ending of a French participle
    lequel: str = ""


@dataclass(frozen=True)
class Theme:
    """What patents of one field are about, in one language.

    Attributes:
        device: What is invented.
        purpose: What it is for.
        parts: Ten parts; three neighbors (0-2, 3-5, 6-8) are the core of an invention.
        effects: Clauses that follow "so that".
        codes: IPC codes of the field.
    """

    device: Noun
    purpose: str
    parts: tuple[Noun, ...]
    effects: tuple[str, ...]
    codes: tuple[str, ...]


def noun(language: str, entry: str) -> Noun:
    """Reads ``'valve'``, ``'n Ventil'`` or ``'f vanne'``."""
    if language == "EN":
        return Noun(entry, f"a{'n' * (entry[0] in 'aeiou')} {entry}", f"the {entry}")
    gender, bare = entry.split(" ", 1)
    if language == "DE":
        a, accusative, einem, the, den, dem = {
            "m": ("ein", "einen", "einem", "der", "den", "dem"),
            "f": ("eine", "eine", "einer", "die", "die", "der"),
            "n": ("ein", "ein", "einem", "das", "das", "dem"),
        }[gender]
        before = (f"{article} {bare}" for article in (a, the, accusative, einem, den, dem))
        return Noun(bare, *before)
    a, e, lequel = {"m": ("un", "", "lequel"), "f": ("une", "e", "laquelle")}[gender]
    if bare[0] in "aeiouéê":
        the, du, au = f"l'{bare}", f"de l'{bare}", f"à l'{bare}"
    elif gender == "m":
        the, du, au = f"le {bare}", f"du {bare}", f"au {bare}"
    else:
        the, du, au = f"la {bare}", f"de la {bare}", f"à la {bare}"
    return Noun(bare, f"{a} {bare}", the, du=du, au=au, e=e, lequel=lequel)


def read_themes(table: str) -> list[dict[str, Theme]]:
    """Themes as the table below has them: codes, device, purpose, ten parts, then effects; ``|`` between languages."""
    themes = []
    for block in table.strip().split("\n\n"):
        codes, *rows = block.split("\n")
        columns = zip(*(row.split(" | ") for row in rows), strict=True)
        theme = {}
        for language, (device, purpose, *rest) in zip(LANGUAGES, columns, strict=True):
            parts = tuple(noun(language, entry) for entry in rest[:10])
            theme[language] = Theme(noun(language, device), purpose, parts, tuple(rest[10:]), tuple(codes.split(", ")))
        themes.append(theme)
    return themes


THEMES = read_themes("""
F25B 30/02, F24F 11/30, F25B 13/00, F28D 15/02
heat pump | f Wärmepumpe | f pompe à chaleur
for heating a building | zum Heizen eines Gebäudes | pour le chauffage d'un bâtiment
scroll compressor | m Spiralverdichter | m compresseur à spirale
evaporator | m Verdampfer | m évaporateur
expansion valve | n Expansionsventil | m détendeur
brine circuit | m Solekreislauf | m circuit de saumure
four-way valve | n Vierwegeventil | f vanne à quatre voies
defrost heater | f Abtauheizung | f résistance de dégivrage
buffer tank | m Pufferspeicher | m ballon tampon
suction line | f Saugleitung | f conduite d'aspiration
oil separator | m Ölabscheider | m séparateur d'huile
plate exchanger | m Plattenwärmetauscher | m échangeur à plaques
the refrigerant evaporates at a lower pressure | das Kältemittel bei geringerem Druck verdampft | le fluide \
frigorigène s'évapore à une pression plus faible
no ice forms on the outer coil in winter | sich im Winter kein Eis auf dem Außenregister bildet | la batterie \
extérieure ne gèle pas en hiver
the heating water becomes warmer with the same power | das Heizwasser bei gleicher Leistung wärmer wird | le chauffage \
fournit de l'eau plus chaude à puissance égale

H01M 10/44, H02J 7/00, H01M 10/48, B60L 58/12
battery charger | n Batterieladegerät | m chargeur de batterie
for an electric vehicle | für ein Elektrofahrzeug | pour un véhicule électrique
lithium cell | f Lithiumzelle | f cellule au lithium
balancing resistor | m Ausgleichswiderstand | f résistance d'équilibrage
voltage sensor | m Spannungssensor | m capteur de tension
cooling plate | f Kühlplatte | f plaque de refroidissement
separator film | f Separatorfolie | f membrane séparatrice
pressure vent | f Druckentlastung | m évent de surpression
charging contactor | n Ladeschütz | m contacteur de charge
supercapacitor | m Superkondensator | m supercondensateur
rectifier bridge | f Gleichrichterbrücke | m pont redresseur
current shunt | m Strommesswiderstand | m shunt de courant
all cells reach the same state of charge | alle Zellen denselben Ladezustand erreichen | les cellules atteignent le \
même état de charge
the electrolyte does not overheat | sich der Elektrolyt nicht überhitzt | le refroidissement protège l'électrolyte
the charging time is cut by half | sich die Ladezeit halbiert | la durée de charge diminue de moitié

F03D 7/02, F03D 11/00, H02K 7/18, F03D 1/06
wind turbine | f Windkraftanlage | f éolienne
for generating electricity offshore | zur Stromerzeugung auf See | pour la production d'électricité en mer
pitch bearing | n Blattlager | m palier de pas
rotor hub | f Rotornabe | m moyeu de rotor
hydraulic accumulator | m Hydraulikspeicher | m accumulateur hydraulique
planetary gearbox | n Planetengetriebe | m train épicycloïdal
yaw drive | m Azimutantrieb | m moteur d'orientation
brake disc | f Bremsscheibe | m disque de frein
lightning conductor | m Blitzableiter | m paratonnerre
blade tip | f Blattspitze | f extrémité de pale
tower flange | m Turmflansch | f bride de mât
nacelle frame | m Gondelrahmen | m châssis de nacelle
the blades turn out of a gust in time | sich die Blätter rechtzeitig aus einer Böe drehen | les pales se mettent en \
drapeau avant la rafale
the loads on the tower remain small | die Lasten am Turm klein bleiben | les efforts sur le mât restent faibles
the generator runs at constant speed | der Generator mit konstanter Drehzahl läuft | la génératrice tourne à vitesse \
constante

A61M 5/142, A61M 5/168, A61B 5/00, G16H 20/17
infusion pump | f Infusionspumpe | f pompe à perfusion
for dosing a drug | zum Dosieren eines Arzneimittels | pour le dosage d'un médicament
peristaltic rotor | m Schlauchrotor | m rotor péristaltique
drip chamber | f Tropfkammer | f chambre compte-gouttes
bubble detector | m Blasendetektor | m détecteur de bulles
piston rod | f Kolbenstange | f tige de piston
syringe holder | m Spritzenhalter | m support de seringue
occlusion alarm | m Verschlussalarm | f alarme d'occlusion
drug reservoir | n Arzneimittelreservoir | m réservoir de médicament
needle hub | m Nadelansatz | f embase d'aiguille
dose memory | m Dosisspeicher | f mémoire de doses
check valve | n Rückschlagventil | m clapet antiretour
no air reaches the vein of the patient | keine Luft in die Vene des Patienten gelangt | les veines du patient ne \
reçoivent pas d'air
the dose stays constant over many hours | die Dosis über viele Stunden konstant bleibt | la dose reste constante \
pendant des heures
the nurse is warned at once | das Pflegepersonal sofort gewarnt wird | le personnel soignant reçoit une alerte immédiate

H04N 5/225, G02B 7/04, H04N 5/335, G03B 17/02
camera module | n Kameramodul | m module de caméra
for a mobile telephone | für ein Mobiltelefon | pour un téléphone mobile
lens barrel | m Objektivtubus | m barillet d'objectif
voice coil | f Tauchspule | f bobine mobile
position magnet | m Positionsmagnet | m aimant de position
image sensor | m Bildsensor | m capteur d'image
color filter | n Farbfilter | m filtre coloré
readout amplifier | m Ausleseverstärker | m amplificateur de lecture
infrared shutter | m Infrarotverschluss | m obturateur infrarouge
tilt mirror | m Kippspiegel | m miroir basculant
flash diode | f Blitzdiode | f diode flash
cover glass | n Deckglas | m verre de protection
the picture is sharp at short distances too | das Bild auch auf kurze Entfernung scharf ist | la photo est nette \
même de près
stray light does not reach the pixels | kein Streulicht auf die Bildpunkte fällt | la lumière parasite n'atteint pas \
les pixels
the module is thinner than known ones | das Modul dünner als bekannte Module ist | le module est plus mince que les \
modules connus

B62L 1/00, F16D 65/12, B62L 3/02, F16D 55/22
bicycle brake | f Fahrradbremse | m frein de bicyclette
for wet roads | für nasse Straßen | pour les routes mouillées
brake lever | m Bremshebel | m levier de frein
bleed screw | f Entlüftungsschraube | f vis de purge
master cylinder | m Geberzylinder | m maître-cylindre
brake caliper | m Bremssattel | m étrier de frein
ceramic pad | m Keramikbelag | f plaquette en céramique
return spring | f Rückholfeder | m ressort de rappel
ventilated rotor | f Lochscheibe | m rotor ventilé
hose connector | m Schlauchanschluss | m raccord de durite
rim sensor | m Felgensensor | m capteur de jante
fork mount | f Gabelaufnahme | f fixation de fourche
water is wiped off before the pads grip | das Wasser vor dem Bremsen abgestreift wird | le film d'eau disparaît avant \
le freinage
the braking force can be dosed with one finger | sich die Bremskraft mit einem Finger dosieren lässt | la force de \
freinage se dose d'un seul doigt
the brake does not squeal | die Bremse nicht quietscht | le frein ne grince pas

C02F 1/44, B01D 61/02, C02F 1/32, B01D 65/02
water purifier | m Wasserreiniger | m purificateur d'eau
for drinking water | für Trinkwasser | pour l'eau potable
hollow fibre | f Hohlfaser | f fibre creuse
backwash pump | f Rückspülpumpe | f pompe de rétrolavage
sediment filter | m Sedimentfilter | m filtre à sédiments
ultraviolet lamp | f Ultraviolettlampe | f lampe à ultraviolets
quartz sleeve | f Quarzhülse | f gaine de quartz
turbidity probe | f Trübungssonde | f sonde de turbidité
ion exchanger | m Ionenaustauscher | m échangeur d'ions
brine inlet | m Soleeinlass | f entrée de saumure
resin bed | n Harzbett | m lit de résine
pressure vessel | m Druckbehälter | m réservoir sous pression
germs are held back without chlorine | Keime ohne Chlor zurückgehalten werden | les germes sont retenus sans chlore
the membrane is cleaned during operation | die Membran im Betrieb gereinigt wird | la membrane se nettoie en service
the hardness of the water drops | die Härte des Wassers sinkt | la dureté de l'eau diminue

B65B 9/20, B65B 51/30, B65D 75/58, B65B 57/02
packaging machine | f Verpackungsmaschine | f machine d'emballage
for filling bags | zum Befüllen von Beuteln | pour le remplissage de sachets
forming shoulder | f Formschulter | f épaule de formage
film unwinder | m Folienabwickler | m dérouleur de film
dancer roller | f Tänzerwalze | m rouleau danseur
sealing jaw | f Siegelbacke | f mâchoire de scellage
cutting knife | n Trennmesser | m couteau de coupe
cooling nozzle | f Kühldüse | f buse de refroidissement
multihead weigher | f Mehrkopfwaage | f peseuse associative
filling funnel | m Fülltrichter | f trémie de remplissage
reject gate | f Ausschleusklappe | m volet d'éjection
gripper belt | m Greiferriemen | f courroie de préhension
the film runs without creases | die Folie faltenfrei läuft | le film défile sans plis
the seam is tight even with dusty goods | die Naht auch bei staubigem Gut dicht ist | le joint reste étanche même avec \
un produit poudreux
more bags are filled in a minute | mehr Beutel je Minute gefüllt werden | le nombre de sachets par minute augmente
""")

# The last sentence says what the invention is for.
BACKGROUND = {
    "EN": (
        "{d.a} in which {p.the} and {q.the} are formed separately is known from the prior art.",
        "Known devices have the drawback that {p.the} wears out early and must be replaced together with {q.the}.",
        "Where space is scarce, {p.the} has so far been left out, although {q.the} then works less reliably.",
        "It is an object of the invention to provide {d.a} {purpose} that costs less than one with {p.a}.",
    ),
    "DE": (
        "Bekannt ist {d.a} einer Bauart, bei der {p.the} und {q.the} getrennt ausgebildet sind.",
        "Bekannte Vorrichtungen haben den Nachteil, dass {p.the} früh verschleißt und samt {q.dem} zu ersetzen ist.",
        "Bei knappem Bauraum wurde {p.the} bisher weggelassen, obwohl {q.the} dann weniger zuverlässig arbeitet.",
        "Der Erfindung liegt die Aufgabe zugrunde, {d.accusative} {purpose} zu schaffen, die Kosten für {p.accusative} "
        "aber zu sparen.",
    ),
    "FR": (
        "On connaît déjà {d.a} où {p.the} et {q.the} sont réalisés séparément.",
        "Les dispositifs connus ont l'inconvénient que {p.the} s'use vite et doit être remplacé{p.e} avec {q.the}.",
        "Lorsque la place manque, on a jusqu'ici supprimé {p.the}, bien que {q.the} soit alors moins fiable.",
        "L'invention a pour but de proposer {d.a} {purpose}, d'un coût moindre que la solution avec {p.a}.",
    ),
}

DETAIL = {
    "EN": (
        "{p.the} is arranged between {q.the} and {r.the}, so that {effect}.",
        "In this embodiment {p.the} is connected to {q.the} by way of {r.the}.",
        "{p.a} that is controlled by {q.the} starts as soon as {r.the} reaches its working range.",
        "Tests showed that {effect} if {p.the} sits {n} mm from {q.the} instead of beside {r.the}.",
        "The control unit compares the state of {p.the} with that of {q.the} and then switches {r.the}.",
    ),
    "DE": (
        "{p.the} ist zwischen {q.dem} und {r.dem} angeordnet, sodass {effect}.",
        "In dieser Ausführungsform ist {p.the} über {r.accusative} mit {q.dem} verbunden.",
        "{p.a}, von {q.dem} gesteuert, beginnt zu arbeiten, sobald {r.the} den Arbeitsbereich erreicht.",
        "Versuche zeigten, dass {effect}, wenn {p.the} mit {n} mm Abstand von {q.dem} statt neben {r.dem} sitzt.",
        "Die Steuerung vergleicht {p.den} mit {q.dem} und schaltet danach {r.den}.",
    ),
    "FR": (
        "{p.the} est disposé{p.e} entre {q.the} et {r.the}, de sorte que {effect}.",
        "Dans ce mode de réalisation, {p.the} est relié{p.e} {q.au} par {r.the}.",
        "{p.a} commandé{p.e} par {q.the} démarre dès que {r.the} atteint sa plage de travail.",
        "Des essais ont montré que {effect} si {p.the} se trouve à {n} mm {q.du} et non à côté {r.du}.",
        "L'unité de commande compare l'état {p.du} à celui {q.du} puis commute {r.the}.",
    ),
}

ABSTRACT = {
    "EN": "{d.a} {purpose} comprises {p.a}, {q.a} and {r.a}. {p.the} is coupled to {q.the}, so that {effect}.",
    "DE": "{d.a} {purpose} umfasst {p.accusative}, {q.accusative} und {r.accusative}. "
    "{p.the} ist mit {q.dem} gekoppelt, sodass {effect}.",
    "FR": "{d.a} {purpose} comprend {p.a}, {q.a} et {r.a}. {p.the} est couplé{p.e} {q.au}, de sorte que {effect}.",
}

TITLE = {
    "EN": "{d.bare} with {p.a} and {q.a}",
    "DE": "{d.bare} mit {p.einem} und {q.einem}",
    "FR": "{d.bare} avec {p.a} et {q.a}",
}

INDEPENDENT_CLAIM = {
    "EN": "{d.a} {purpose}, comprising {p.a}, {q.a} and {r.a}, characterized in that {p.the} is arranged between "
    "{q.the} and {r.the}, so that {effect}.",
    "DE": "{d.bare} {purpose}, mit {p.einem}, {q.einem} und {r.einem}, dadurch gekennzeichnet, dass {p.the} zwischen "
    "{q.dem} und {r.dem} angeordnet ist, sodass {effect}.",
    "FR": "{d.bare} {purpose}, comprenant {p.a}, {q.a} et {r.a}, caractérisé{d.e} en ce que {p.the} est disposé{p.e} "
    "entre {q.the} et {r.the}, de sorte que {effect}.",
}

DEPENDENT_CLAIM = {
    "EN": (
        "{d.a} {reference}, wherein {p.the} carries {q.a}.",
        "{d.a} {reference}, wherein {p.the} is kept at a distance of {n} mm from {q.the}.",
        "{d.a} {reference}, wherein {p.the} can be separated from {q.the} during operation.",
        "{d.a} {reference}, further comprising {p.a} beside {q.the}.",
    ),
    "DE": (
        "{d.bare} {reference}, wobei {p.the} {q.accusative} trägt.",
        "{d.bare} {reference}, wobei {p.the} mit {n} mm Abstand von {q.dem} gehalten ist.",
        "{d.bare} {reference}, wobei {p.the} im Betrieb von {q.dem} trennbar ist.",
        "{d.bare} {reference}, ferner mit {p.einem} neben {q.dem}.",
    ),
    "FR": (
        "{d.bare} {reference}, dans {d.lequel} {p.the} porte {q.a}.",
        "{d.bare} {reference}, dans {d.lequel} {p.the} est maintenu{p.e} à {n} mm {q.du}.",
        "{d.bare} {reference}, dans {d.lequel} {p.the} peut être séparé{p.e} {q.du} en service.",
        "{d.bare} {reference}, comprenant en outre {p.a} à côté {q.du}.",
    ),
}

# How a claim refers to one claim, to a range, to alternatives, to all before it, and to any of a range.
REFERENCES = {
    "EN": {
        "one": ("according to claim {first}", "as claimed in claim {first}"),
        "range": ("according to claims {first} to {last}",),
        "either": ("as claimed in claim {first} or {last}", "according to claims {first} or {last}"),
        "preceding": ("according to any of the preceding claims", "as claimed in any one of the preceding claims"),
        "any": ("according to any one of claims {first} to {last}",),
    },
    "DE": {
        "one": ("nach Anspruch {first}", "gemäß Anspruch {first}"),
        "range": ("nach den Ansprüchen {first} bis {last}",),
        "either": ("nach Anspruch {first} oder {last}", "nach den Ansprüchen {first} oder {last}"),
        "preceding": ("nach einem der vorhergehenden Ansprüche", "nach einem der vorangehenden Ansprüche"),
        "any": ("nach einem der Ansprüche {first} bis {last}",),
    },
    "FR": {
        "one": ("selon la revendication {first}", "suivant la revendication {first}"),
        "range": ("selon les revendications {first} à {last}",),
        "either": ("selon la revendication {first} ou {last}", "selon les revendications {first} ou {last}"),
        "preceding": (
            "selon l'une quelconque des revendications précédentes",
            "selon l'une des revendications précédentes",
        ),
        "any": ("selon l'une quelconque des revendications {first} à {last}",),
    },
}

SOLUTION = {
    "EN": "This object is achieved by the features of claim {claim}.",
    "DE": "Diese Aufgabe wird durch die Merkmale von Anspruch {claim} gelöst.",
    "FR": "Ce but est atteint par les caractéristiques de la revendication {claim}.",
}

HEADINGS = {
    "EN": ("BACKGROUND OF THE INVENTION", "SUMMARY OF THE INVENTION", "DETAILED DESCRIPTION"),
    "DE": ("Stand der Technik", "Darstellung der Erfindung", "Ausführungsbeispiele"),
    "FR": ("État de la technique", "Exposé de l'invention", "Description détaillée"),
}
