"""The synthetic corpus of the quickstart: its text, alignments, probabilities, parts and noise."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from sacremoses import MosesTokenizer

import corpus
import lexicon
from alignment import parse_talp, to_pharaoh, to_talp
from grammar import make_sentence
from held_out import HELD_OUT
from morphology import AUXILIARIES, WAS, noun_form, present
from quickstart_corpus import LONGER, NEW, PARTS, SMALL, lines, make, pairs, records, tokens
from recipes import EXAMPLES
from sentence import spelled

SIZES = {"train": 3000, "valid": 250, "test": 250, NEW: 54, LONGER: 54}
FLAGS = ["--train", "3000", "--valid", "250", "--test", "250", "--held-out", "54"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("corpus"), *FLAGS)


def test_all_files_have_a_line_for_each_pair(folder: Path):
    names = {"corpus.json"}
    for part in PARTS:
        suffixes = ["de", "en", "tok.de", "tok.en", "talp", "pharaoh", "constructions"]
        suffixes += ["targets.jsonl"] * (part != "train") + ["label"] * (part in (NEW, LONGER))
        for name in (f"{part}.{suffix}" for suffix in suffixes):
            names.add(name)
            assert len(lines(folder, name)) == SIZES[part], name
    assert {path.name for path in folder.iterdir()} == names


@pytest.mark.parametrize("language", ["de", "en"])
def test_tokens_are_those_of_the_moses_tokenizer(folder: Path, language: str):
    tokenizer = MosesTokenizer(lang=language)
    raw = [line for part in PARTS for line in lines(folder, f"{part}.{language}")]
    for plain_text, expected in list(zip(raw, tokens(folder, language), strict=True))[::4]:
        found = tokenizer.tokenize(plain_text, aggressive_dash_splits=False, escape=False)
        assert found == expected


def test_vocabulary_is_small(folder: Path):
    types = json.loads((folder / "corpus.json").read_text())["train_types"]
    assert all(250 <= counts["lower-cased"] <= 400 for counts in types.values())


@pytest.mark.parametrize("part", PARTS)
def test_every_word_is_aligned_unless_it_has_no_counterpart(folder: Path, part: str):
    silent = {",", "dass", "der", "die", "das", "den", "dem", "denen"}
    for source, target, links in pairs(folder, part):
        every = links.sure | links.possible
        assert not links.sure & links.possible
        assert {s for s, _ in every} <= set(range(len(source)))
        assert {t for _, t in every} == set(range(len(target))), target
        aligned = {s for s, _ in every}
        assert {w for s, w in enumerate(source) if s not in aligned} <= silent, source
    both = zip(lines(folder, f"{part}.talp"), lines(folder, f"{part}.pharaoh"), strict=True)
    for talp, pharaoh in both:
        assert to_talp(parse_talp(talp)) == talp
        assert to_pharaoh(parse_talp(talp)) == pharaoh


@pytest.mark.parametrize("text", ["0-1", "1", "1-2-3", "1x2", "-1-1"])
def test_bad_talp_is_refused(text: str):
    with pytest.raises(ValueError, match="talp"):
        parse_talp(text)


def test_every_construction_is_shown_in_the_readme(folder: Path):
    found = {item for line in lines(folder, "train.constructions") for item in line.split("; ")}
    readme = (EXAMPLES / "quickstart" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.+ [.?]) \| (.+ [.?]) \| `([^`]+)` \|$", readme, re.M)
    assert {row[0] for row in rows} == found - {""}
    sentences = tokens(folder, "de", "train") + tokens(folder, "en", "train")
    known = {word.lower() for sentence in sentences for word in sentence}
    for _, source, target, talp in rows:
        assert known.issuperset(f"{source} {target}".lower().split())
        links = parse_talp(talp)
        assert {t for _, t in links.sure | links.possible} == set(range(len(target.split())))


# Agreement, by tables of its own: which forms a word can be, and the adjective's ending after it.
ARTICLES = {
    "der": "nom.m dat.f", "die": "nom.f acc.f nom.pl acc.pl", "das": "nom.n acc.n",
    "den": "acc.m dat.pl", "dem": "dat.m dat.n", "im": "dat.m dat.n", "am": "dat.m dat.n",
    "zum": "dat.m dat.n", "zur": "dat.f", "ins": "acc.n",
}  # fmt: skip
ENDINGS = {
    "": "nom.m nom.n acc.n", "e": "nom.f acc.f nom.pl acc.pl", "en": "acc.m dat.pl",
    "em": "dat.m dat.n", "er": "dat.f",
}  # fmt: skip
STEMS = ("ein", "kein", "mein", "unser")
DETERMINERS = ARTICLES | {stem + end: ENDINGS[end] for stem in STEMS for end in ENDINGS}
WEAK = {"nom.m": "e", "nom.f": "e", "nom.n": "e", "acc.f": "e", "acc.n": "e"}
MIXED = WEAK | {"nom.m": "er", "nom.n": "es", "acc.n": "es"}
STRONG = MIXED | {"nom.pl": "e", "acc.pl": "e"}


def noun_forms() -> dict[str, set[str]]:
    forms = defaultdict(set)
    for noun in lexicon.NOUNS:
        for case in ("nom", "acc", "dat"):
            forms[noun_form(noun, case, False)].add(f"{case}.{noun.gender}")
            if noun.plural:
                forms[noun_form(noun, case, True)].add(f"{case}.pl")
    return forms


def readings(before: list[str], forms: set[str]) -> set[str]:
    """The forms of a noun that the article, numeral and adjective before it allow."""
    before, ending = before[:], ""
    adjective = re.fullmatch(r"(.+?)(e|en|er|es|em)", before[-1]) if before else None
    if adjective and adjective[1] in {stem.removesuffix("e") for stem in lexicon.ADJECTIVES}:
        ending = adjective[2]
        before.pop()
    if before and before[-1].lower() in dict(lexicon.NUMERALS):
        forms = {form for form in forms if form.endswith("pl")}
        before.pop()
    word = before[-1].lower() if before else ""
    results = []
    if word in DETERMINERS:
        table = WEAK if word in ARTICLES else MIXED
        results = [(form, table) for form in forms & set(DETERMINERS[word].split())]
    if word not in DETERMINERS or before[-2:-1] == [","]:  # a relative pronoun is no article
        results += [(form, STRONG) for form in forms]
    return {form for form, table in results if not ending or table.get(form, "en") == ending}


def test_declension_of_noun_phrases(folder: Path):
    nouns = noun_forms()
    for sentence in tokens(folder, "de"):
        for position, word in enumerate(sentence):
            if word in nouns:
                assert readings(sentence[:position], nouns[word]), sentence[: position + 1]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("dem Jungen", True), ("der kleinen Katze", True), ("die zwei großen Äpfel", True),
        ("zwei große Äpfel", True), ("dem Junge", False), ("die Hund", False),
        ("kein altes Hund", False), ("das altes Haus", False), ("den Kinder", False),
    ],
)  # fmt: skip
def test_readings_tell_right_from_wrong(text: str, right: bool):
    *before, noun = text.split()
    assert bool(readings(before, noun_forms()[noun])) == right


def test_german_pronoun_and_verb_agree(folder: Path):
    verbs = [verb for verb in lexicon.VERBS if verb.name != "sein"]
    allowed = {}
    for word, agreement in {"Ich": "1sg", "Er": "3sg", "Wir": "pl"}.items():
        allowed[word] = {present(verb, agreement) for verb in [*verbs, *lexicon.MODALS]}
        allowed[word] |= {table[agreement] for table in (*AUXILIARIES.values(), WAS)}
    started = [sentence for sentence in tokens(folder, "de") if sentence[0] in allowed]
    assert {sentence[0] for sentence in started} == set(allowed)
    assert [line for line in started if line[1] not in allowed[line[0]]] == []


def test_english_pronoun_and_verb_agree(folder: Path):
    entries = [lexicon.synonyms(verb.english) for verb in lexicon.VERBS]
    forms = [words for entry in entries for _, words in entry]
    bases = {base for base, third, past, *_ in forms if base != past}
    thirds = {third for _, third, *_ in forms}
    wrong = dict.fromkeys(("He", "She", "It"), bases | {"am", "are", "were", "do", "have"})
    wrong |= dict.fromkeys(("I", "We", "They"), thirds | {"does", "has"})
    started = [sentence for sentence in tokens(folder, "en") if sentence[0] in wrong]
    assert {sentence[0] for sentence in started} == set(wrong)
    assert [line for line in started if line[1] in wrong[line[0]]] == []


def test_indefinite_article_fits_the_next_word(folder: Path):
    articles = Counter()
    for sentence in tokens(folder, "en"):
        for word, after in zip(sentence[:-1], sentence[1:], strict=True):
            if word.lower() in ("a", "an"):
                articles[word.lower()] += 1
                assert (word.lower() == "an") == (after[0] in "aeiou"), sentence
    assert min(articles["a"], articles["an"]) > 50


def test_lengths(folder: Path):
    for part in PARTS:
        shortest, longest = (26, 40) if part == LONGER else (3, 25)
        for language in ("de", "en"):
            lengths = [len(sentence) for sentence in tokens(folder, language, part)]
            assert shortest <= min(lengths) and max(lengths) <= longest


def test_test_sets_have_new_sentences_and_known_words(folder: Path):
    seen = set(lines(folder, "train.de"))
    for part in PARTS[1:]:
        sources = lines(folder, f"{part}.de")
        assert len(set(sources)) == len(sources) and not seen & set(sources)
        seen |= set(sources)
    for language in ("de", "en"):
        known = {word for sentence in tokens(folder, language, "train") for word in sentence}
        assert known.issuperset(w for s in tokens(folder, language, NEW, LONGER) for w in s)


RELATIVE = "(?:der|die|das|den|dem|denen)"
CLAUSE = (
    r"(?:(?:^|, |und |aber )(?:weil|obwohl|wenn)|, (?:dass|ob|wo|wann|warum)"
    rf"|(?-i:[A-ZÄÖÜ])\w+ , {RELATIVE}) [^,]*"
)
MODALS = "(?:kann|können|muss|müssen|will|wollen|soll|sollen|darf|dürfen)"
SURFACE = {
    "adjective: klein Vogel": r"\bkleine[nrsm]? v(?:o|ö)gel",
    "adjective: rot Fahrrad": r"\brote[nrsm]? fahrr",
    "dative: Arzt": r"\b(?:dem|(?:ein|mein|unser)em) (?:\w+en )?arzt\b|ärzten\b",
    "dative: Katze": r"(?<!, )\b(?:d|ein|mein|unser)er (?:\w+en )?katze\b|mit (\w+ ){0,3}katzen",
    "modal: helfen": rf"\b{MODALS}\b[^,]* helfen\b|\bhelfen {MODALS}\b",
    "modal: lesen": rf"\b{MODALS}\b[^,]* lesen\b|\blesen {MODALS}\b",
    "numeral: drei Kind": r"\bdrei (?:\w+en? )?kinder",
    "numeral: zwei Bild": r"\bzwei (?:\w+en? )?bilder",
    "relative clause: Auto": rf"\bautos? , {RELATIVE} ",
    "relative clause: Student": rf"\bstudent(?:en)? , {RELATIVE} ",
    "separated in a question: anrufen": r"\b(?:ruft|rufen) [^,]*\ban \?",
    "separated in a question: zumachen": r"\b(?:macht|machen) [^,]*\bzu \?",
    "subordinate clause: besuchen": CLAUSE + r"\bbesuch",
    "subordinate clause: reparieren": CLAUSE + r"\breparier",
}


@pytest.mark.parametrize("label", SURFACE)
def test_surface_of_what_is_held_out(folder: Path, label: str):
    """A pattern finds most of what is held out in its own test set, and nothing elsewhere."""
    pattern = re.compile(SURFACE[label], re.IGNORECASE)
    both = zip(lines(folder, f"{NEW}.tok.de"), lines(folder, f"{NEW}.label"), strict=True)
    own = [bool(pattern.search(source)) for source, found in both if label in found.split("; ")]
    assert len(own) >= 3 and 2 * sum(own) >= len(own)
    for part in ("train", "valid", "test", LONGER):
        assert [line for line in lines(folder, f"{part}.tok.de") if pattern.search(line)] == []


def test_combinations_of_words_and_constructions(folder: Path):
    parts = corpus.draw_corpus(3, corpus.Sizes(train=800, valid=50, test=50, held_out=0))
    drawn = [example.sentence for examples in parts.values() for example in examples]
    assert not {item for sentence in drawn for item in sentence.combinations} & set(HELD_OUT)
    named = {item for line in lines(folder, f"{NEW}.label") for item in line.split("; ")}
    assert named == {f"{construction}: {word}" for construction, word in HELD_OUT}


@pytest.mark.parametrize("part", PARTS[1:])
def test_listed_targets(folder: Path, part: str):
    sides = [lines(folder, f"{part}.tok.{language}") for language in ("de", "en")]
    listed = records(folder, f"{part}.targets.jsonl")
    for source, target, record in zip(*sides, listed, strict=True):
        probabilities = {item["text"]: item["probability"] for item in record["targets"]}
        assert record["source"] == source
        assert len(probabilities) == len(record["targets"]) <= 16
        assert math.isclose(sum(probabilities.values()), 1, abs_tol=1e-6)
        assert min(probabilities.values()) > 0 and target in probabilities


def test_a_source_determines_its_targets_and_their_frequencies():
    """Equal sources have equal targets; over all sentences each is drawn as often as it says."""
    generator = random.Random(11)
    known: dict[str, dict[str, float]] = {}
    expected, variance, observed = Counter(), Counter(), Counter()
    repeated = 0
    for _ in range(3000):
        sentence = make_sentence(generator)
        if sentence.english.count() > 16:
            continue
        targets = sentence.targets()
        target = " ".join(spelled(sentence.sample(generator)))
        source = " ".join(sentence.german)
        repeated += source in known
        assert known.setdefault(source, targets) == pytest.approx(targets), source
        for text, probability in targets.items():
            level = round(probability, 1)
            expected[level] += probability
            variance[level] += probability * (1 - probability)
            observed[level] += text == target
    assert repeated > 50 and len(expected) > 6
    for level in expected:
        tolerance = 4 * math.sqrt(variance[level]) + 1e-6
        assert abs(observed[level] - expected[level]) <= tolerance, level


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its valid and test are those of `folder` before the noise: parts are drawn independently."""
    flags = [*FLAGS, "--train", "100", "--held-out", "0", "--noise", "all", "--noise-share", "0.3"]
    return make(tmp_path_factory.mktemp("noisy"), *flags, "--noise-splits", "valid", "test")


def plain(words: list[str]) -> list[str]:
    """Without what depends on the neighbours: the capital and the form of the article."""
    return ["a" if word.lower() == "an" else word.lower() for word in words]


@pytest.mark.parametrize("part", ["valid", "test"])
def test_noise_is_what_its_label_says(folder: Path, noisy: Path, part: str):
    labels = records(noisy, f"{part}.noise.jsonl")
    counts = {"none": 175, "shuffled": 25, "inserted": 25, "dropped": 25}
    assert Counter(label["noise"] for label in labels) == counts
    clean, spoilt = pairs(folder, part), pairs(noisy, part)
    targets = records(folder, f"{part}.targets.jsonl")
    for number, (label, before, after) in enumerate(zip(labels, clean, spoilt, strict=True)):
        source, target, links = after
        every = links.sure | links.possible
        correct = [item["text"] for item in targets[number]["targets"]]
        assert source == before[0]
        assert (" ".join(target) in correct) == (label["noise"] == "none")
        if label["noise"] == "none":
            assert after == before
        elif label["noise"] == "shuffled":
            assert not every and target == clean[label["target_of"]][1]
        elif label["noise"] == "inserted":
            added = set(label["inserted"])
            assert added == set(range(len(target))) - {t for _, t in every}
            kept = [word for index, word in enumerate(target) if index not in added]
            assert plain(kept) == plain(before[1])
        else:
            check_dropped(label, before, after)


def check_dropped(label: dict, before: tuple, after: tuple) -> None:
    """What is left of the target and its links is as before, without those of the phrase."""
    lost = set(label["dropped"])
    assert lost and label["phrase"] in ("adverbial", "relative clause")
    gone = {t for s, t in before[2].sure | before[2].possible if s in lost}
    kept = [index for index in range(len(before[1])) if index not in gone]
    assert plain(after[1]) == plain([before[1][index] for index in kept])
    for old, new in zip(before[2], after[2], strict=True):
        assert new == {(s, kept.index(t)) for s, t in old if t not in gone}


def test_noise_leaves_other_parts_alone_and_can_be_undone(noisy: Path, tmp_path: Path):
    assert not (noisy / "train.noise.jsonl").exists()
    make(tmp_path, *SMALL, "--noise", "shuffled")
    assert sum(label["noise"] != "none" for label in records(tmp_path, "train.noise.jsonl")) == 15
    make(tmp_path, *SMALL)
    assert not (tmp_path / "train.noise.jsonl").exists()
    assert not list(tmp_path.glob("*.partial"))
