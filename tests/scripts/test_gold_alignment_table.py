"""scripts/gold_alignment_table.py on a miniature in the layout of RWTH's gold set."""

from __future__ import annotations

import html
import io
import json
import shutil
import tarfile
from pathlib import Path
from statistics import fmean, stdev

import pytest
from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

import gold_alignment_table
import references
import toy
from bad_input import assert_refused
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import load_translator
from gold_alignment import read_pairs, segment, unpack
from script_input import record_preparation

GERMAN = [
    "Wir glauben nicht , daß wir nur Rosinen herauspicken sollten .",
    "Die Vor- und Nachteile überwiegen .",
    "",
    'Müller & Söhne sagen : " Ja ! "',
    "Das stimmt nicht !",
    "",
]
ENGLISH = [
    "We do not believe that we should cherry-pick .",
    "The advantages prevail .",
    "",
    "Müller & Sons don't say no .",
    "But this is not what happens .",
    "",
]
TALP = ["1-1 2-4 3-3 5p5 6-6 9-8 8p8 11-9", "1-1 4p2 5-3 6-4", "", "1-1 2-2 3-3 6p6", "1p2 3-4", ""]
DIRECTION = ("en", "de")


def make_set(folder: Path, talp: list[str] = TALP, **texts: list[str]) -> Path:
    """Write the files of the original; the fourth has the links in a form that is not read."""
    folder.mkdir(parents=True)
    lines = {"de": GERMAN, "en": ENGLISH, **texts}
    lines |= {"alignmentDeEn.talp": talp, "alignmentDeEn": ["SENT: 0", "S 0 0"]}
    for name, content in lines.items():
        text = "".join(line + "\n" for line in content)
        (folder / name).write_bytes(text.encode("latin-1"))
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gold")
    path = folder / "DeEnGoldAlignment.tar.gz"
    with tarfile.open(path, "w:gz") as members:
        members.add(make_set(folder / "DeEn"), "DeEn")
    return path


def tokens_of(language: str, text: str) -> str:
    return MosesTokenizer(language).tokenize(text, aggressive_dash_splits=True, return_str=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the stage prepare leaves (settings, merges, dictionaries) for the set itself."""
    folder = tmp_path_factory.mktemp("data") / "prepared"
    folder.mkdir()
    record_preparation(folder.parent, *DIRECTION, bpe_merges=30)
    texts = {
        language: [tokens_of(language, line) for line in lines if line]
        for language, lines in (("de", GERMAN), ("en", ENGLISH))
    }
    with open(folder / "bpe.codes", "w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO("\n".join(sum(texts.values(), []))), codes, 30)
    bpe = BPE(open(folder / "bpe.codes", encoding="utf-8"))
    for language, lines in texts.items():
        split = [bpe.process_line(line) for line in lines[1:]] * 4  # some of line 1 is unknown
        (folder / f"train.{language}").write_text("\n".join(split) + "\n", encoding="utf-8")
    toy.run(
        "fairseq_cli.preprocess",
        *("--source-lang", DIRECTION[0], "--target-lang", DIRECTION[1]),
        *("--trainpref", folder / "train", "--validpref", folder / "train"),
        *("--joined-dictionary", "--destdir", folder / "bin"),
    )
    return folder


@pytest.fixture(scope="module")
def checkpoints(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    flags = ["--arch", "transformer_sparse_tiny", "--task", "translation_sparse"]
    flags += ["--attention", "rela_g", "--seed"]
    folders = [tmp_path_factory.mktemp("model") for _ in range(2)]
    return [
        toy.train(folder, prepared / "bin", *flags, seed)[0]
        for seed, folder in enumerate(folders, start=1)
    ]


def call_here(*arguments: object) -> int:
    return gold_alignment_table.main([*map(str, arguments), "--cpu"])


def owners(pieces: list[str], words: list[str]) -> list[int]:
    """Return the number of each piece's word, by counting the characters of the tokens."""
    result, word, left, token = [], 0, len(words[0]), ""
    for piece in pieces:
        if left == 0:
            word += 1
            left = len(words[word])
        result.append(word)
        token += piece.removesuffix("@@")
        if not piece.endswith("@@"):
            left -= len("-" if token == "@-@" else html.unescape(token))
            token = ""
            assert left >= 0
    assert (word, left) == (len(words) - 1, 0)
    return result


def rates_by_hand(checkpoint: Path, output: Path) -> dict:
    """Return (kind, layer, head or "mean") -> AER, by plain loops over each pair's weights."""
    translator = load_translator(str(checkpoint), str(output / "bin"), cpu=True)
    pieces = [
        [line.split() for line in (output / f"pieces.{lang}").read_text("utf-8").splitlines()]
        for lang in DIRECTION
    ]
    texts = [[line.split() for line in lines if line] for lines in (ENGLISH, GERMAN)]
    sure, possible = [], []
    for line in filter(None, TALP):
        links = [(link.replace("p", "-").split("-"), "p" in link) for link in line.split()]
        numbers = [((int(english) - 1, int(german) - 1), p) for (german, english), p in links]
        sure.append([link for link, p in numbers if not p])
        possible.append([link for link, p in numbers if p])
    proposed: dict = {}
    for sample in translator.batches("test", 4000):
        for pair in forced_attention(translator.models[0], sample, 1):
            sides = [owners(pieces[side][pair.number], texts[side][pair.number]) for side in (0, 1)]
            for layer, heads in enumerate(pair.weights["cross"]):
                for head, weights in [*enumerate(heads), ("mean", heads.mean(0))]:
                    for kind, rows in (("normal", weights[:-1]), ("shifted", weights[1:])):
                        merged = references.merge_subwords(rows[:, :-1].tolist(), *sides)
                        links = references.word_links(merged)
                        proposed.setdefault((kind, layer, head), {})[pair.number] = links
    return {
        reading: references.alignment_error_rate(sure, possible, [x[n] for n in range(4)])[2]
        for reading, x in proposed.items()
    }


@pytest.mark.slow
def test_error_rates_are_those_of_plain_loops(
    archive: Path,
    prepared: Path,
    checkpoints: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "new" / "out"
    flags = ["--prepared", prepared, "--path", *(f"ReLA-g={path}" for path in checkpoints)]
    assert call_here(archive, *flags, "--output", output) == 0
    printed = capsys.readouterr().out
    written = json.loads((output / "alignment_error_rate.json").read_text("utf-8"))
    assert written["gold"] == {
        **{"path": str(output / "gold"), "sentences": 4, "sure": 13, "possible": 5}
    }
    model = written["models"]["ReLA-g"]
    by_hand = [rates_by_hand(path, output) for path in checkpoints]
    assert len({round(rate, 9) for rate in by_hand[0].values()}) > 2
    for kind in ("normal", "shifted"):
        for seed, rates in zip(model["seeds"], by_hand, strict=True):
            for number, layer in enumerate(seed[kind]["layers"]):
                heads = [rates[kind, number, head] for head in (0, 1)]
                assert layer["heads"] == pytest.approx(heads)
                assert layer["best"] == pytest.approx(min(heads))
                assert layer["average"] == pytest.approx(rates[kind, number, "mean"])
        aoh = [fmean(min(x[kind, n, 0], x[kind, n, 1]) for n in (0, 1)) for x in by_hand]
        aol = [fmean(x[kind, n, "mean"] for n in (0, 1)) for x in by_hand]
        for name, values in (("aoh", aoh), ("aol", aol)):
            assert model[kind][name] == pytest.approx(fmean(values))
            assert model[kind]["deviation"][name] == pytest.approx(stdev(values))
            assert f"{100 * fmean(values):.2f} ± {100 * stdev(values):.2f}" in printed
    assert printed.startswith("| model  | normal, AoL")
    for suffix in ("png", "svg"):
        assert (output / f"alignment_error_rate.{suffix}").stat().st_size > 1000
    # Again from the folder, over the existing output, with one of the models.
    flags = ["--prepared", prepared, "--path", checkpoints[0], "--output", output]
    assert call_here(archive.parent, *flags) == 0
    (one,) = json.loads((output / "alignment_error_rate.json").read_text("utf-8"))[
        "models"
    ].values()
    assert one["seeds"] == model["seeds"][:1] and "deviation" not in one["normal"]


def test_both_directions(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == ["alignmentDeEn.talp", "de", "en"]
    pairs, reverse = read_pairs(folder, "de", "en"), read_pairs(folder, "en", "de")
    assert pairs.source == reverse.target == [line.split() for line in GERMAN if line]
    assert pairs.target == reverse.source == [line.split() for line in ENGLISH if line]
    assert pairs.links[0].sure >= {(8, 7), (1, 3)} and (7, 7) in pairs.links[0].possible
    for links, turned in zip(pairs.links, reverse.links, strict=True):
        for kind, other in zip(links, turned, strict=True):
            assert {(target, source) for source, target in kind} == other


def test_words_keep_their_pieces() -> None:
    def split(text: str) -> str:
        return text.replace("-", " @-@ ").replace("ing", "@@ ing")

    pieces, words = segment("I like cherry-picking them".split(), split)
    assert pieces == ["I", "like", "cherry", "@-@", "pick@@", "ing", "them"]
    assert (words.starts, words.text[2]) == ([0, 1, 2, 6], "cherry-picking")
    with pytest.raises(ValueError, match="nothing is left of the word '-'"):
        segment(["a", "-"], lambda text: text.replace("-", ""))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"en": ENGLISH[:-1]}, "alignmentDeEn.talp"),
        ({"en": ["", *ENGLISH[1:]]}, "line 1"),
        ({"en": ["", *ENGLISH[1:]], "talp": ["", *TALP[1:]]}, "line 1"),
        ({"talp": ["1-10", *TALP[1:]]}, "line 1"),
        ({"talp": ["S 1 1", *TALP[1:]]}, "line 1"),
    ],
)
def test_damaged_sets(changes: dict, place: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=place):
        read_pairs(make_set(tmp_path / "DeEn", **changes), "de", "en")


def test_bad_input_is_one_line(
    archive: Path,
    prepared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    other, characters = (tmp_path / name / "prepared" for name in ("other", "characters"))
    shutil.copytree(prepared, other)
    record_preparation(other.parent, "fr", "de", bpe_merges=30)
    characters.mkdir(parents=True)
    record_preparation(characters.parent, "fr", "de", kind="inflection")
    for named, *arguments in [
        ("no such file", tmp_path / "DeEn", "--prepared", prepared),
        ("prepare.json", archive, "--prepared", characters),
        ("fr-de", archive, "--prepared", other),
    ]:
        arguments += ["--path", "x.pt", "--output", tmp_path / "out"]
        assert_refused(capsys, named, call_here, *arguments)
