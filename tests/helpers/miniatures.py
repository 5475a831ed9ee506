"""Small archives in the original layout of each data set, and their sentences."""

from __future__ import annotations

import gzip
import random
import re
from collections import defaultdict
from pathlib import Path

import archives

Splits = dict[str, dict[str, list[str]]]  # split -> language -> sentences

# One row for each pair of files, in the order in which they are joined; {a,b} is a for the source
# and b for the target. An archive's name is followed by "!" and the path inside; #N is a column of
# a file that has both sides, with bars between them.
LAYOUTS = {
    "multi30k_de_en": """
        train train.{de,en}.gz
        valid val.{de,en}.gz
        test test_2016_flickr.{de,en}.gz""",
    "iwslt14_de_en": """
        train iwslt14.de-en.tgz!de-en/train.tags.de-en.{de,en}
        test iwslt14.de-en.tgz!de-en/IWSLT14.TED.dev2010.de-en.{de,en}.xml
        test iwslt14.de-en.tgz!de-en/IWSLT14.TEDX.dev2012.de-en.{de,en}.xml
        test iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2010.de-en.{de,en}.xml
        test iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2011.de-en.{de,en}.xml
        test iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2012.de-en.{de,en}.xml""",
    # WIT3: one archive for each direction, and test archives that have the source only.
    "iwslt17_de_en": """
        train trnted.de-en.tgz!de-en/train.tags.de-en.{de,en}
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.dev2010.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2010.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2011.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2012.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2013.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2014.de-en.{de,en}.xml
        valid trnted.de-en.tgz!de-en/IWSLT17.TED.tst2015.de-en.{de,en}.xml
        test ted-test.{de-en.tgz!de-en/,en-de.tgz!en-de/}IWSLT17.TED.tst2017.{de-en.de,en-de.en}.xml
        """,
    "kftt_ja_en": """
        train kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-train.cln.{ja,en}
        valid kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-dev.{ja,en}
        test kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-test.{ja,en}""",
    "wmt13_en_ru": """
        train training-parallel-commoncrawl.tgz!commoncrawl.ru-en.{en,ru}
        train training-parallel-nc-v8.tgz!training/news-commentary-v8.ru-en.{en,ru}
        train wmt15-wiki-titles.tgz!wiki/ru-en/wiki.ru-en#{2,1}
        valid wmt19-dev.tgz!dev/newstest2012.{en,ru}
        test wmt13-test.tgz!test/newstest2013-src.{en,ru}.sgm""",
    "wmt14_en_de": """
        train training-parallel-europarl-v7.tgz!training/europarl-v7.de-en.{en,de}
        train training-parallel-commoncrawl.tgz!commoncrawl.de-en.{en,de}
        train training-parallel-nc-v9.tgz!training/news-commentary-v9.de-en.{en,de}
        valid wmt13-test.tgz!test/newstest2013-src.{en,de}.sgm
        test wmt14-test-full.tgz!test-full/newstest2014-deen-{src.en,ref.de}.sgm""",
    # Giga-FrEn: compressed files in an uncompressed tar.
    "wmt14_en_fr": """
        train training-parallel-un.tgz!un/undoc.2000.fr-en.{en,fr}
        train training-giga-fren.tar!giga-fren.release2.fixed.{en,fr}.gz
        train training-parallel-europarl-v7.tgz!training/europarl-v7.fr-en.{en,fr}
        train training-parallel-commoncrawl.tgz!commoncrawl.fr-en.{en,fr}
        train training-parallel-nc-v9.tgz!training/news-commentary-v9.fr-en.{en,fr}
        valid wmt13-test.tgz!test/newstest2013-src.{en,fr}.sgm
        test wmt14-test-full.tgz!test-full/newstest2014-fren-{src.en,ref.fr}.sgm""",
    "wmt16_ro_en": """
        train wmt16-training-parallel-ep-v8.tgz!training-parallel-ep-v8/europarl-v8.ro-en.{ro,en}
        train SETIMES.en-ro.txt.zip!SETIMES.en-ro.{ro,en}
        valid wmt16-dev.tgz!dev/newsdev2016-roen-{src.ro,ref.en}.sgm
        test wmt16-test.tgz!test/newstest2016-roen-{src.ro,ref.en}.sgm""",
    "wmt18_en_fi": """
        train wmt18-training-parallel-ep-v8.tgz!training/europarl-v8.fi-en.{en,fi}
        train ~.tgz!~.{en,fi}
        train rapid2016.tgz!rapid2016.en-fi.{en,fi}
        valid wmt17-test.tgz!test/newstest2017-enfi-{src.en,ref.fi}.sgm
        test wmt18-test.tgz!test/newstest2018-enfi-{src.en,ref.fi}.sgm
        """.replace("~", "paracrawl-release1.en-fi.zipporah0-dedup-clean"),
    "wmt18_zh_en": """
        train ~.tgz!~/news-commentary-v13.zh-en.{zh,en}
        train UNv1.0.en-zh.tar.gz!en-zh/UNv1.0.en-zh.{zh,en}
        train cwmt.tgz!cwmt/casia2015/casia2015_{ch,en}.txt
        train cwmt.tgz!cwmt/casict2015/casict2015_{ch,en}.txt
        train cwmt.tgz!cwmt/datum2015/datum_{ch,en}.txt
        train cwmt.tgz!cwmt/neu2017/NEU_{cn,en}.txt
        """.replace("~", "training-parallel-nc-v13")
    + "".join(f"train cwmt.tgz!cwmt/datum2017/Book{n}_{{cn,en}}.txt\n" for n in range(1, 21))
    + """
        valid wmt17-test.tgz!test/newstest2017-zhen-{src.zh,ref.en}.sgm
        test wmt18-test.tgz!test/newstest2018-zhen-{src.zh,ref.en}.sgm""",
}
LAYOUTS["tanaka_ja_en"] = """
    train train.{ja,en}
    valid dev.{ja,en}
    test test.{ja,en}"""
LAYOUTS["multi30k_en_fr"] = LAYOUTS["multi30k_de_en"].replace("{de,en}", "{en,fr}")
LAYOUTS["iwslt17_en_de"] = (
    LAYOUTS["iwslt17_de_en"]
    .replace("{de-en.tgz!de-en/,en-de.tgz!en-de/}", "{en-de.tgz!en-de/,de-en.tgz!de-en/}")
    .replace("{de-en.de,en-de.en}", "{en-de.en,de-en.de}")
    .replace("de-en.tgz!de-en/train.tags.de-en.{de,en}", "en-de.tgz!en-de/train.tags.en-de.{en,de}")
    .replace("trnted.de-en.tgz!de-en/", "trnted.en-de.tgz!en-de/")
    .replace("de-en.{de,en}.xml", "en-de.{en,de}.xml")
)
LAYOUTS["kftt_en_ja"] = LAYOUTS["kftt_ja_en"].replace("{ja,en}", "{en,ja}")
LAYOUTS["wmt14_en_de_32k"] = LAYOUTS["wmt14_en_de"]
LAYOUTS["wmt16_ro_en_32k"] = LAYOUTS["wmt16_ro_en"]
LAYOUTS["wmt16_en_ro"] = (
    LAYOUTS["wmt16_ro_en"]
    .replace("{ro,en}", "{en,ro}")
    .replace("roen-{src.ro,ref.en}", "enro-{src.en,ref.ro}")
)

WORDS = {
    "de": "Hund Straße größer läuft Übung über “nie” Tor".split(),
    "en": "dog street bigger runs exercise over “never” door".split(),
    "fi": "koira katu isompi juoksee työtä yli “ei” ovi".split(),
    "fr": "chien rue très œuvre façon sur “jamais” porte".split(),
    "ja": "京都 は 、 寺 が 多い 。 源氏".split(),
    "ro": "câine stradă și așa țară În şcoală ţară Ștefan Ţara".split(),
    "ru": "собака улица больше бежит упражнение над “нет” дверь".split(),
    "zh": "我们 喜欢 中国 猫 在 街上 “从不” 门".split(),
}
# Prefixes of data sets that are published as tokens, and of those published without archives.
TOKENIZED = ("kftt", "tanaka")
# Numbers of the pairs that ``spoil`` changes in the first two files of a training text.
EMPTY, LONG, LOPSIDED, FOREIGN = 3, 5, 7, 9
STRAIGHT = str.maketrans("“”", '""')


def languages_of(name: str) -> tuple[str, str]:
    source, target = name.split("_")[1:3]
    return source, target


def draw(languages: tuple[str, str], count: int, seed: int) -> list[list[str]]:
    """Draw ``count`` sentences of four words, and return them in each language."""
    numbers = random.Random(seed)
    rows = [[numbers.randrange(8) for _ in range(4)] for _ in range(count)]
    return [
        [("" if lang == "zh" else " ").join(WORDS[lang][word] for word in row) for row in rows]
        for lang in languages
    ]


def spoil(sides: list[list[str]], english: list[str]) -> None:
    """Change some pairs into ones that a preparation has to notice."""
    sides[1][EMPTY] = ""
    for side in sides:
        side[LONG] = " ".join([side[LONG]] * 80)
    sides[1][LOPSIDED] = " ".join([sides[1][LOPSIDED]] * 4)
    english[FOREIGN] = "naïve… café on streets"


def expand(row: str) -> tuple[str, list[str]]:
    """Return the split of a row and the places of both sides."""
    split, place = row.split()
    return split, [
        re.sub(r"\{(.*?),(.*?)\}", lambda match, side=side: match[side], place) for side in (1, 2)
    ]


def content(path: str, lines: list[str], first: bool, titles: bool) -> bytes:
    """Return a file's content; the first file has a byte order mark and CR LF."""
    if path.endswith((".sgm", ".xml")):
        return archives.sgm([line.replace("&", "&amp;").replace('"', "&quot;") for line in lines])
    if "train.tags" in path:
        talk = ["<url>http://www.ted.com/1</url>", "<keywords>talks</keywords>"]
        title = [f"<title>{lines[0]}</title>"] if titles else ["<title>Not one</title>", lines[0]]
        lines = [*talk, "<talkid>1</talkid>", *title, *lines[1:]]
    data = archives.text(lines, end="\r\n" if first else "\n")
    data = data.replace("naïve… café".encode(), "naïve\x85 café".encode("latin-1"))
    if path.endswith(".gz"):
        return gzip.compress(data)
    return b"\xef\xbb\xbf" * first + data


def build(name: str, folder: Path) -> Splits:
    """Write the miniature archives of a data set; return the sentences to be found in them."""
    languages = languages_of(name)
    splits: Splits = defaultdict(lambda: {language: [] for language in languages})
    members: dict[str, dict[str, bytes]] = defaultdict(dict)
    rows = [expand(row) for row in LAYOUTS[name].splitlines() if row.strip()]
    for number, (split, places) in enumerate(rows):
        sides = draw(languages, 60 if split == "train" else 3, number)
        in_archives = "!" in places[0]
        if name.startswith(TOKENIZED):  # tokens that Moses would escape or split otherwise
            sides = [[f"{line} don 't & ''" for line in side] for side in sides]
        elif split == "train" and in_archives and number < 2:
            spoil(sides, sides[languages.index("en")])
        elif places[0].endswith((".sgm", ".xml")):
            sides = [[line.translate(STRAIGHT) for line in side] for side in sides]
        for language, lines, place in zip(languages, sides, places, strict=True):
            splits[split][language] += lines
            archive, _, path = place.partition("#")[0].rpartition("!")
            first = in_archives and number == 0
            data = content(path, lines, first, titles=name.startswith("iwslt14"))
            if "#" in place:
                columns = [lines for _, lines in sorted(zip(places, sides, strict=True))]
                rows_of_both = [" ||| ".join(pair) for pair in zip(*columns, strict=True)]
                data = archives.text(rows_of_both)
            if in_archives:
                members[archive][path] = data
            else:
                (folder / path).write_bytes(data)
    for archive, inside in members.items():
        inside["LICENSE"] = b"Not a text\n"
        (folder / archive).write_bytes(packed(archive, inside))
    return splits


def packed(archive: str, members: dict[str, bytes]) -> bytes:
    if archive.endswith(".zip"):
        return archives.zipped(members)
    return archives.tar(members, "" if archive.endswith(".tar") else "gz")
