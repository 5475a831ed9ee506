"""The quickstart's corpus: its translations, alignments, parts and files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from sacremoses import MosesTokenizer

import make_corpus
import words
from alternatives import Token, Word, choice, pick, sequence, spell, talp, tokens
from fairseq_sparse.measure.alignment.word_alignment import from_talp
from make_corpus import MOST_TRANSLATIONS, UNSEEN_PAIRS
from templates import make_sentence

SIZES = {"train": 1200, "valid": 60, "test": 200, UNSEEN_PAIRS: 100}
PARTS = tuple(SIZES)
FLAGS = ["--train", "1200", "--valid", "60", "--test", "200", "--held-out", "100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    assert make_corpus.main([str(folder), *FLAGS]) == 0
    return folder


@pytest.fixture(scope="module")
def drawn() -> list:
    generator = random.Random(11)
    return [make_sentence(generator) for _ in range(800)]


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").splitlines()


def sentences(folder: Path, language: str) -> list[list[str]]:
    return [line.split() for part in PARTS for line in lines(folder, f"{part}.tok.{language}")]


def records(folder: Path, part: str) -> list[dict]:
    return [json.loads(line) for line in lines(folder, f"{part}.targets.jsonl")]


# The tree of alternatives.


def test_choice_and_sequence_by_hand() -> None:
    old, man = Word("alter"), Word("Mann")
    adjective = choice("word", (0.75, tokens("old", [old])), (0.25, tokens("very_old", [old])))
    noun = choice("other", (1.0, tokens("man", [man], [old])))
    found = sequence(adjective, noun, tokens(""))
    texts = {" ".join(token.text for token in english): p for p, english in found.items}
    assert texts == {"old man": 0.75, "very old man": 0.25} and found.kinds == {"word"}
    (_, short), (_, long) = found.items
    assert short == (Token("old", (old,)), Token("man", (man,), (old,)))
    assert talp([old, man], long) == "1-1 1-2 1p3 2-3"
    with pytest.raises(ValueError, match="do not sum to 1"):
        choice("word", (0.7, noun), (0.2, noun))


def test_spelling() -> None:
    sentence = [Token(text) for text in "a old man sees a dog".split()]
    assert spell(sentence) == "An old man sees a dog"
    assert words.options("bank*6/bench*4") == [(0.6, "bank"), (0.4, "bench")]
    plurals = words.read_noun("thing", "n Ding Dinge leaf*6/box/city*4/day").pair[1][1]
    assert plurals == "leaves*6/boxes/cities*4/days"


def test_draws_follow_the_weights() -> None:
    generator = random.Random(3)
    found = Counter(pick(generator, "ab", (3, 1)) for _ in range(800))
    assert abs(found["a"] - 600) < 4 * math.sqrt(150)
    assert {pick(generator, "xyz") for _ in range(50)} == set("xyz")


def test_probabilities_sum_to_one_and_no_translation_stands_twice(drawn) -> None:
    for sentence in drawn:
        texts = [spell(english) for _, english in sentence.english.items]
        assert len(set(texts)) == len(texts)
        assert math.isclose(sum(p for p, _ in sentence.english.items), 1)
        assert min(p for p, _ in sentence.english.items) > 0
        assert bool(sentence.english.kinds) == (len(texts) > 1)


def test_links_cover_every_english_token(drawn) -> None:
    """German commas may lack a link, and so may "dass" where English has no "that"."""
    null, one_to_many = Counter(), 0
    for sentence in drawn:
        for _, english in sentence.english.items:
            sure, possible = from_talp(talp(sentence.german, english))
            assert {target for _, target in possible} == set(range(len(english)))
            aligned = {source for source, _ in possible}
            assert aligned <= set(range(len(sentence.german)))
            null.update(w.text for n, w in enumerate(sentence.german) if n not in aligned)
            one_to_many += max(Counter(source for source, _ in sure).values()) > 1
    assert set(null) == {",", "dass"} and one_to_many > 60


@pytest.mark.parametrize(
    ("german", "english", "expected"),
    [
        ("S V P", "S third", {"picks up|2-2 2-3 3-2 3-3", "collects|2-2 3-2"}),
        ("S V P", "S is~V ing", {"is picking up|2p2 2-3 2-4 3-3 3-4", "is collecting|2p2 2-3 3-3"}),
        ("S hat Q", "S past~hat", {"picked up|2p2 2p3 3-2 3-3", "collected|2p2 3-2"}),
        ("S hat Q", "S hat done", {"has picked up|2-2 3-3 3-4", "has collected|2-2 3-3"}),
    ],
)
def test_links_of_a_separable_verb(
    monkeypatch: pytest.MonkeyPatch, german: str, english: str, expected: set[str]
) -> None:
    """German: holt ... ab, hat ... abgeholt."""
    (verb,) = (verb for verb in words.VERBS["object"] if verb.pair[0]["Q"] == "abgeholt")
    monkeypatch.setattr(words, "VERBS", {"only": [verb]})
    generator, template = random.Random(1), f"test | only | {german} | tense | {english}"
    drawn = (make_sentence(generator, [template]) for _ in range(500))
    found = next(sentence for sentence in drawn if sentence.german[0].text == "Anna")
    assert spell(found.german) in ("Anna holt ab", "Anna hat abgeholt")
    translations = [tokens for _, tokens in found.english.items]
    links = {f"{spell(tokens)}|{talp(found.german, tokens)}" for tokens in translations}
    assert links == {f"Anna {text}".replace("|", "|1-1 ") for text in expected}


# The files.


def test_all_files_have_a_line_for_each_pair(folder: Path) -> None:
    names = {"corpus.json"}
    for part in PARTS:
        suffixes = ["de", "en", "tok.de", "tok.en", "talp"] + ["targets.jsonl"] * (part != "train")
        for name in (f"{part}.{suffix}" for suffix in suffixes):
            names.add(name)
            assert len(lines(folder, name)) == SIZES[part], name
    assert {path.name for path in folder.iterdir()} == names
    report = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    assert report["pairs"] == SIZES and report["kind"] == "synthetic"
    assert all(report["train_types"].values())


@pytest.mark.parametrize("language", ["de", "en"])
def test_tokens_are_those_of_the_moses_tokenizer(folder: Path, language: str) -> None:
    tokenizer = MosesTokenizer(lang=language)
    raw = [line for part in PARTS for line in lines(folder, f"{part}.{language}")]
    for text, expected in list(zip(raw, sentences(folder, language), strict=True))[::5]:
        assert tokenizer.tokenize(text, aggressive_dash_splits=False, escape=False) == expected


@pytest.mark.parametrize("part", PARTS[1:])
def test_listed_translations(folder: Path, part: str) -> None:
    columns = (lines(folder, f"{part}.{name}") for name in ("tok.de", "tok.en", "talp"))
    for source, target, links, record in zip(*columns, records(folder, part), strict=True):
        assert record["source"] == source and 1 <= len(record["targets"]) <= MOST_TRANSLATIONS
        probabilities = [item["probability"] for item in record["targets"]]
        assert math.isclose(sum(probabilities), 1, abs_tol=1e-6)
        assert probabilities == sorted(probabilities, reverse=True) and probabilities[-1] > 0
        found = {item["text"]: item["links"] for item in record["targets"]}
        assert found[target] == links
        for text, talp_line in found.items():
            _, possible = from_talp(talp_line)
            assert {target for _, target in possible} == set(range(len(text.split())))


def test_held_out_sentences_are_new_but_their_words_are_known(folder: Path) -> None:
    seen = set(lines(folder, "train.de"))
    for part in PARTS[1:]:
        sources = lines(folder, f"{part}.de")
        assert len(set(sources)) == len(sources) and not seen & set(sources)
        seen |= set(sources)
    train = set(" ".join(lines(folder, "train.tok.de") + lines(folder, "train.tok.en")).split())
    for record in (record for part in PARTS[1:] for record in records(folder, part)):
        assert train.issuperset(record["source"].split())
        assert all(train.issuperset(target["text"].split()) for target in record["targets"])


def test_unseen_pairs_are_of_known_words() -> None:
    parts = make_corpus.draw_corpus(2, {"train": 1000, "valid": 10, "test": 10, UNSEEN_PAIRS: 40})
    pairs = {
        part: [pair for sentence, _ in examples for pair in sentence.pairs]
        for part, examples in parts.items()
    }
    usual = {pair for part in PARTS if part != UNSEEN_PAIRS for pair in pairs[part]}
    unseen = {pair for pair in pairs[UNSEEN_PAIRS] if make_corpus.is_unseen(pair)}
    assert unseen and not unseen & usual
    assert all(
        any(make_corpus.is_unseen(pair) for pair in sentence.pairs)
        for sentence, _ in parts[UNSEEN_PAIRS]
    )
    for side in (0, 1):
        assert {pair[side] for pair in unseen} <= {pair[side] for pair in pairs["train"]}


def test_same_seed_gives_same_files_whatever_the_hashes(tmp_path: Path) -> None:
    content = {}
    small = ["--train", "300", "--valid", "5", "--test", "5", "--held-out", "5"]
    for name, seed, hashes in (("a", "1", "1"), ("b", "1", "2"), ("c", "2", "1")):
        command = [sys.executable, make_corpus.__file__, tmp_path / name, *small]
        environment = os.environ | {"PYTHONHASHSEED": hashes}
        subprocess.run([*command, "--seed", seed], check=True, env=environment)
        content[name] = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    assert content["a"] == content["b"]
    assert content["a"]["train.de"] != content["c"]["train.de"]


@pytest.mark.slow
def test_the_default_corpus_is_the_one_that_was_trained_on(tmp_path: Path) -> None:
    """The figures on the quickstart's page depend on it: after a change, they are new ones."""
    assert make_corpus.main([str(tmp_path)]) == 0
    texts = sorted(path for path in tmp_path.iterdir() if path.name != "corpus.json")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()
    assert digest == "65c3189b1bd557a86f379bca7a43ce7a140840650bb8718ae7259004e68f70fb"


def test_the_readme_shows_a_line_of_the_corpus() -> None:
    drawn = islice(make_corpus.draw(1, "test"), 1200)
    readme = (Path(make_corpus.__file__).parent / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\{.*\}$", readme, re.MULTILINE)
    assert shown and set(shown) <= {make_corpus.record(sentence) for sentence, _ in drawn}


def test_too_few_different_sentences(tmp_path: Path, capsys, monkeypatch) -> None:
    sentence = make_sentence(random.Random(4))
    monkeypatch.setattr(make_corpus, "make_sentence", lambda generator: sentence)
    monkeypatch.setattr(make_corpus, "is_unseen", lambda pair: False)
    flags = ["--valid", "1", "--test", "2", "--held-out", "0"]
    assert make_corpus.main([str(tmp_path / "corpus"), *flags]) == 1
    assert "--train" in capsys.readouterr().err
    assert not (tmp_path / "corpus").exists()


def test_bad_usage_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    for arguments in ([path], [tmp_path / "corpus", "--train", "-1"]):
        with pytest.raises(SystemExit, match="2"):
            make_corpus.main([*map(str, arguments)])
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]
