"""examples/quickstart/check_support.py: the truth, the comparison, and a run of the script."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import sacrebleu
import torch
from subword_nmt.apply_bpe import BPE

import check_support
import make_corpus
import toy
from bad_input import assert_refused
from check_support import PARTS, Step, compare, steps_of
from fairseq_sparse.measure import translator as translator_module
from fairseq_sparse.measure.translator import load_translator


def truth_by_hand(targets):
    """Return the correct next tokens and their probabilities for each prefix of a target."""
    result = {}
    for beginning in {tokens[:length] for tokens, _ in targets for length in range(len(tokens))}:
        rest = [(tokens, p) for tokens, p in targets if tokens[: len(beginning)] == beginning]
        following = dict.fromkeys((tokens[len(beginning)] for tokens, _ in rest), 0.0)
        for tokens, p in rest:
            following[tokens[len(beginning)]] += p / sum(p for _, p in rest)
        result[beginning] = following
    return result


def random_targets(rng: random.Random):
    """Draw some distinct strings over few words, so that many share a prefix."""
    strings = {
        (*(rng.choice((4, 5, 6)) for _ in range(rng.randint(0, 4))), 2)
        for _ in range(rng.randint(1, 8))
    }
    weights = {string: rng.random() + 0.01 for string in sorted(strings)}
    return [(string, weight / sum(weights.values())) for string, weight in weights.items()]


def test_steps_are_the_beginnings_of_all_targets():
    rng = random.Random(1)
    for _ in range(100):
        targets = random_targets(rng)
        steps = steps_of(targets)
        found = {targets[step.target][0][: step.position]: step.following for step in steps}
        expected = truth_by_hand(targets)
        assert len(found) == len(steps) and found.keys() == expected.keys()
        for beginning, following in expected.items():
            assert found[beginning] == pytest.approx(following)
        places = [(step.target, step.position) for step in steps]
        assert places == sorted(places)


def compare_by_hand(p: list[float], following: dict[int, float]) -> dict[str, float]:
    if any(map(math.isnan, p)):
        return dict.fromkeys(VALUES, math.nan)
    support = {token for token, mass in enumerate(p) if mass > 0}
    p = [mass / (sum(p) or 1.0) for mass in p]
    differences = [abs(mass - following.get(token, 0.0)) for token, mass in enumerate(p)]
    return {
        "support_exact": support == set(following),
        "support_covers": support >= set(following),
        "wrong_mass": sum(mass for token, mass in enumerate(p) if token not in following),
        "distance": sum(differences) / 2 if support else 1.0,
        "support": len(support),
        "correct": len(following),
    }


VALUES = ("support_exact", "support_covers", "wrong_mass", "distance", "support", "correct")


def test_comparison_of_probabilities_with_the_truth():
    rng = random.Random(2)
    rows, steps = [[0.0] * 6, [math.nan] + [0.2] * 5], [Step(0, 0, {1: 1.0}), Step(0, 0, {1: 1.0})]
    for _ in range(300):
        correct = rng.sample(range(6), rng.randint(1, 3))
        weights = [rng.random() + 0.01 for _ in correct]
        following = {t: w / sum(weights) for t, w in zip(correct, weights, strict=True)}
        support = rng.choice([correct, rng.sample(range(6), rng.randint(1, 6)), range(6)])
        rows.append([rng.random() + 0.01 if token in support else 0.0 for token in range(6)])
        steps.append(Step(0, 0, following))
    values = compare(torch.tensor(rows).log(), steps)
    expected = [compare_by_hand(p, s.following) for p, s in zip(rows, steps, strict=True)]
    assert set(values) == set(VALUES) and {x["support_exact"] for x in expected[2:]} == {0, 1}
    for name in VALUES:
        numbers = [float(row[name]) for row in expected]
        assert values[name].tolist() == pytest.approx(numbers, abs=1e-6, nan_ok=True), name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    corpus = "quickstart/make_corpus.py,--train,300,--valid,10,--test,12,--held-out,8"
    toy.command(
        "run",
        *("quickstart", "softmax", "--cpu", "--stages", "prepare", "--bpe-merges", 300),
        *("--set", f"corpus.made_by={corpus}", "--data-dir", folder, "--run-dir", folder / "run"),
    )
    return folder


@pytest.fixture(scope="module")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    toy.run(
        "fairseq_cli.train",
        *(data / "prepared" / "bin", "--user-dir", toy.USER_DIR, "--save-dir", folder, "--cpu"),
        *("--task", "translation_sparse", "--arch", "transformer_sparse_tiny", "--seed", 1),
        *("--output-transform", "alpha_relu", "--criterion", "alpha_relu_loss", "--dropout", 0),
        *("--optimizer", "adam", "--lr", 0.001, "--max-tokens", 500, "--max-update", 3),
        *("--max-source-positions", 80, "--max-target-positions", 60, "--num-workers", 0),
        *("--no-epoch-checkpoints", "--disable-validation"),
    )
    (folder / "checkpoint_last.pt").rename(folder / "average.pt")
    (folder / "summary.json").write_text(json.dumps({"variant": "small", "bleu": {}}))
    return folder


def call_here(*arguments: object) -> int:
    return check_support.main([*map(str, arguments), "--cpu"])


def records(data: Path, part: str, count: int) -> list[dict]:
    lines = (data / "raw" / f"{part}.targets.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def steps_by_hand(run_dir: Path, data: Path, part: str, count: int) -> list[dict[str, float]]:
    """Compute every step on its own, from one source and one prefix."""
    bin_folder = data / "prepared" / "bin"
    translator = load_translator(str(run_dir / "average.pt"), str(bin_folder), cpu=True)
    (model,), task = translator.models, translator.task
    with open(data / "prepared" / "bpe.codes", encoding="utf-8") as handle:
        bpe = BPE(handle)
    values = []
    for record in records(data, part, count):
        source = task.source_dictionary.encode_line(
            bpe.process_line(record["source"]), add_if_not_exist=False
        ).long()
        targets = []
        for target in record["targets"]:
            units = bpe.process_line(target["text"]).split()
            tokens = [task.target_dictionary.index(unit) for unit in units]
            targets.append(((*tokens, task.target_dictionary.eos()), target["probability"]))
        for beginning, following in truth_by_hand(targets).items():
            previous = torch.tensor([[task.target_dictionary.eos(), *beginning]])
            with torch.no_grad():
                output = model(source[None], torch.tensor([len(source)]), previous)
                p = model.get_normalized_probs(output, log_probs=False)[0, -1]
            values.append(compare_by_hand(p.tolist(), following))
    return values


def table_rows(printed: str) -> list[list[str]]:
    """Return the cells of the rows of the run's model."""
    rows = [line for line in printed.splitlines() if line.startswith("| small")]
    return [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows]


def test_tables_have_the_means_of_all_steps(
    run_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(check_support, "MAX_TOKENS", 90)
    translator = load_translator(str(run_dir / "average.pt"), str(data / "prepared" / "bin"), True)
    assert call_here(run_dir, "--data", data, "--sentences", 5) == 0
    printed = capsys.readouterr().out
    assert printed.count("Synthetic corpus") == 2
    for part, cells in zip(PARTS, table_rows(printed), strict=True):
        result = check_support.check(translator, check_support.read_part(data, part, 5))
        steps = steps_by_hand(run_dir, data, part, 5)
        both = steps, [step for step in steps if step["correct"] > 1]
        assert result["numbers"] == tuple(map(len, both)) and all(both)
        for key in VALUES:
            means = [sum(step[key] for step in members) / len(members) for members in both]
            assert result[key] == pytest.approx(means, abs=1e-4)
        assert 0 < result["support_covers"][0] < 1
        assert cells[3:5] == [
            " / ".join(f"{100 * mean:.1f}" for mean in result[key])
            for key in ("support_exact", "support_covers")
        ]


@pytest.mark.parametrize("right", [0, 6, 12])
def test_scores_of_translations(
    run_dir: Path, data: Path, monkeypatch: pytest.MonkeyPatch, right: int
) -> None:
    """The first sentences get their most probable translation, the others another sentence's."""
    correct = [
        max(record["targets"], key=lambda target: target["probability"])["text"]
        for record in records(data, "test", 12)
    ]
    texts = correct[:right] + [correct[(number + 1) % 12] for number in range(right, 12)]

    def search(translator, batches, beam):
        with open(data / "prepared" / "bpe.codes", encoding="utf-8") as handle:
            bpe = BPE(handle)
        encode = translator.task.target_dictionary.encode_line
        for sample in batches:
            strings = [bpe.process_line(texts[number]) for number in sample["id"].tolist()]
            yield sample, [[{"tokens": encode(s, add_if_not_exist=False)}] for s in strings]

    monkeypatch.setattr(translator_module, "search", search)
    translator = load_translator(str(run_dir / "average.pt"), str(data / "prepared" / "bin"), True)
    part = check_support.read_part(data, "test", None)
    result = check_support.check(translator, part)
    references = (data / "raw" / "test.en").read_text(encoding="utf-8").splitlines()

    def bleu(texts):
        plain = [make_corpus.plain(text) for text in texts]
        return sacrebleu.corpus_bleu(plain, [references]).score

    assert result["correct_translations"] == right / 12
    assert result["bleu"] == pytest.approx(bleu(texts))
    assert check_support.bleu(correct, part)["bleu"] == pytest.approx(bleu(correct))
    assert bleu(correct) > 50


def test_bad_input_is_one_line(run_dir: Path, data: Path, tmp_path: Path, capsys) -> None:
    for name in ("raw", "prepared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).symlink_to(data / name)
    for named, run, folder in [
        ("summary.json", tmp_path, data),
        ("test.targets.jsonl", run_dir, tmp_path / "prepared"),
        ("dict.de.txt", run_dir, tmp_path / "raw"),
    ]:
        assert_refused(capsys, named, call_here, run, "--data", folder)
