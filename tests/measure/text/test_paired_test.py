"""The paired test of runs is that of sacreBLEU's own command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.text.paired_test import paired_test
from fairseq_sparse.measure.text.scores import make_metric, score_systems

WORDS = "the a big small red dog cat house , sees holds near . don't".split()


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def make_run(
    folder: Path,
    lines: list[str],
    references: list[str],
    tokenize: str = "13a",
    others: tuple[list[str], ...] = (),
) -> Path:
    write(folder / "hyp.detok.txt", lines)
    metric = BLEU(tokenize=tokenize)
    score = metric.corpus_score(lines, [references, *others]).score
    content = {"bleu": score, "signature": str(metric.get_signature())}
    (folder / "bleu.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def references() -> list[str]:
    return [" ".join(random.choices(WORDS, k=random.randint(4, 12))) for _ in range(60)]


def spoilt(references: list[str], rate: float) -> list[str]:
    """The references with a share of their words replaced."""
    return [
        " ".join(random.choice(WORDS) if random.random() < rate else word for word in line.split())
        for line in references
    ]


@pytest.mark.parametrize("tokenize", ["13a", "none"])
def test_p_is_that_of_the_command_line(
    tokenize: str, references: list[str], tmp_path: Path
) -> None:
    reference = write(tmp_path / "reference", references)
    runs = [
        make_run(tmp_path / str(rate), spoilt(references, rate), references, tokenize)
        for rate in (0.2, 0.22, 0.5)
    ]
    found, signature = paired_test(runs, [reference], trials=200)
    hypotheses = [str(run / "hyp.detok.txt") for run in runs]
    command = [sys.executable, "-m", "sacrebleu", str(reference), "-i", *hypotheses, "-m", "bleu"]
    command += ["--paired-ar", "--paired-ar-n", "200", "--tokenize", tokenize, "--force"]
    environment = {name: text for name, text in os.environ.items() if name != "SACREBLEU_SEED"}
    output = subprocess.run(
        [*command, "--format", "json"], check=True, capture_output=True, text=True, env=environment
    )
    _, first, second = json.loads(output.stdout)
    expected = [row["BLEU"]["p_value"] for row in (first, second)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert found[1] < 0.05 < found[0]
    assert f"tok:{tokenize}" in signature and "ar:200" in signature


def test_equal_systems_do_not_differ(references: list[str], tmp_path: Path) -> None:
    lines = spoilt(references, 0.3)
    runs = [make_run(tmp_path / name, lines, references) for name in ("a", "b")]
    (p,), _ = paired_test(runs, [write(tmp_path / "reference", references)], trials=50)
    assert p == 1


def test_all_references_of_a_test_set_count(references: list[str], tmp_path: Path) -> None:
    second = spoilt(references, 0.5)
    paths = [
        write(tmp_path / str(number), text) for number, text in enumerate((references, second))
    ]
    runs = [
        make_run(tmp_path / f"run {rate}", spoilt(references, rate), references, others=(second,))
        for rate in (0.2, 0.5)
    ]
    (p,), signature = paired_test(runs, paths, trials=200)
    assert p < 0.05 and "nrefs:2" in signature


def test_what_does_not_fit_is_named(references: list[str], tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", references)
    good = make_run(tmp_path / "good", references, references)
    short = make_run(tmp_path / "short", references[1:], references[1:])
    with pytest.raises(AnalysisError, match="short has 59 translations, .*reference 60 lines"):
        paired_test([good, short], [reference], 10)
    tokens = make_run(tmp_path / "tokens", references, references, "none")
    with pytest.raises(AnalysisError, match="on different tokens: 13a, none"):
        paired_test([good, tokens], [reference], 10)
    without = make_run(tmp_path / "without", references, references)
    (without / "bleu.json").write_text('{"chrf": 60.0}')
    with pytest.raises(AnalysisError, match="without/bleu.json has no BLEU"):
        paired_test([good, without], [reference], 10)
    other = make_run(tmp_path / "other", references, spoilt(references, 0.5))
    with pytest.raises(AnalysisError, match="other has BLEU .* run its stage generate again"):
        paired_test([good, other], [reference], 10)


def test_a_damaged_score_is_named(tmp_path, references):
    runs = [make_run(tmp_path / name, references, references) for name in ("a", "b")]
    (runs[1] / "bleu.json").write_text('{"bleu": 3')
    with pytest.raises(ValueError, match=f"{runs[1] / 'bleu.json'}: not valid JSON"):
        paired_test(runs, [write(tmp_path / "ref", references)], 10)


def test_systems_that_differ_by_chance_seldom_have_a_small_p(references: list[str]) -> None:
    """sacreBLEU's paired bootstrap has p < 0.1 for a quarter of them."""
    metric, small = make_metric("bleu"), 0
    for _ in range(100):
        systems = [spoilt(references, 0.3) for _ in range(2)]
        (found,) = score_systems(systems, [references], [metric], trials=100)
        small += found.p[0] < 0.1
    assert small <= 18


def test_p_is_never_below_what_so_few_differences_can_show(references: list[str]) -> None:
    """With k translations that differ, 2 of the 2^k exchanges have the difference found."""
    for count, least in ((0, 1.0), (1, 1.0), (2, 0.5), (3, 0.25), (8, 2 / 256)):
        other = ["a different text", *spoilt(references, 1.0)][:count] + references[count:]
        (found,) = score_systems([references, other], [references], [make_metric("bleu")], 2000)
        assert found.p[0] >= least


def test_a_tokenizer_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(AnalysisError, match="ja-mecab"):
        make_metric("bleu", "ja-mecab")
