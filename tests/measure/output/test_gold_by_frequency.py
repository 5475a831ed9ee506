"""Rank, support and frequency classes of gold, against counts one by one."""

import math

import pytest
import torch
from fairseq.data import Dictionary

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.cache import BEAM
from fairseq_sparse.measure.output.gold_by_frequency import WordClasses, gold_rank, measure_gold
from fairseq_sparse.measure.text.word_frequency import LIMITS
from fairseq_sparse.measure.translator import ForcedSteps, Translator


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("subwords", "pieces"), [("subword_nmt", "a@@ b c new"), ("sentencepiece", "▁a b ▁c ▁new")]
)
def test_a_token_has_the_class_of_its_word(subwords, pieces, tmp_path):
    words = Dictionary()
    pieces = pieces.split()
    sentence = list(map(words.add_symbol, pieces))
    training = write(tmp_path / "text", *[" ".join(pieces[:3])] * 5, *[pieces[2]] * 7)
    classes, word = WordClasses(words, training, subwords).classify(
        torch.tensor([*sentence, words.eos()])
    )
    assert word.tolist() == [0, 0, 1, 2, 3]
    # ab 5 times, c and the end of a sentence 12 times, the new word never
    assert [LIMITS[number] for number in classes] == [(2, 9), (2, 9), (10, 99), (0, 0), (10, 99)]
    joined = WordClasses(words, write(training, *["ab c"] * 5, *["c"] * 7), subwords)
    assert joined.classify(torch.tensor([*sentence, words.eos()]))[0].tolist() == classes.tolist()
    with pytest.raises(AnalysisError, match="--subwords"):
        WordClasses(words, training, "none")
    with pytest.raises(AnalysisError, match="is empty"):
        WordClasses(words, write(training), "none")


def test_a_stray_mark_does_not_make_a_text_one_of_pieces(tmp_path):
    words = Dictionary()
    a, b = map(words.add_symbol, ("▁a", "▁b"))
    training = write(tmp_path / "text", *["a b b"] * 20, "▁ x")
    with pytest.raises(AnalysisError, match="--subwords"):
        WordClasses(words, training, "none")
    classes = WordClasses(words, training, "sentencepiece")
    found = classes.classify(torch.tensor([a, b, words.eos()]))[0]
    assert [LIMITS[number] for number in found] == [(10, 99)] * 3
    assert classes.classify(torch.tensor([words.unk(), words.eos()]))[0][0] == 0


def test_the_unknown_word_is_as_frequent_as_all_that_it_stands_for(tmp_path):
    words = Dictionary()
    words.add_symbol("a")
    classes = WordClasses(words, write(tmp_path / "text", *["a yak"] * 5, "ox"), "none")
    found = classes.classify(torch.tensor([words.index("a"), words.unk(), words.eos()]))[0]
    assert classes._frequencies["<unk>"] == 6 and LIMITS[found[1]] == (2, 9)


def test_ranks_see_order_below_the_support():
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    log_p = torch.tensor([[0.0, -math.inf, -math.inf]] * 2)
    steps = ForcedSteps(log_p, torch.tensor([1, 0]), *torch.zeros(2, 2).long(), logits)
    assert gold_rank(steps).tolist() == [3, 1]


@pytest.mark.parametrize("arch", ["transformer_tiny", "transformer_sparse_tiny", "lstm_sparse"])
def test_classes_are_those_counted_one_by_one(arch, tmp_path):
    flags = [] if arch == "transformer_tiny" else ["--output-transform", "entmax15"]
    words, model = toy.dictionary(), toy.model(*flags, arch=arch, criterion="").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    translator = Translator("toy", [], [model], toy.task())
    batch = toy.batch(words, ((6, 5), (4, 3), (2, 7)))
    training = write(tmp_path / "text", *["w0 w1 w2"] * 3, *["w3 w4 w5 w6"] * 20)
    found = measure_gold(translator, [batch], "test", WordClasses(words, training, "none"))
    frequencies = {**dict.fromkeys(["w0", "w1", "w2"], 3), "</s>": 23}
    frequencies |= dict.fromkeys(["w3", "w4", "w5", "w6"], 20)
    output = model(**batch["net_input"])
    p = model.get_normalized_probs(output, log_probs=False)
    rows = []
    for row, column in (batch["target"] != words.pad()).nonzero().tolist():
        token, logits = batch["target"][row, column], output[0][row, column]
        rank = 1 + int((logits > logits[token]).sum())
        nonzeros = int((p[row, column] > 0).sum())
        frequency = frequencies.get(words[token], 0)
        rows.append((frequency, rank, nonzeros, bool(p[row, column, token] == 0)))
    assert found["sentences"] == 3 and [part["least"] for part in found["classes"]] == [
        least for least, _ in LIMITS
    ]
    for part in [*found["classes"], {**found["all"], "least": 0, "most": None}]:
        most = math.inf if part["most"] is None else part["most"]
        chosen = [row for row in rows if part["least"] <= row[0] <= most]
        assert part["tokens"] == part["words"] == len(chosen)
        if not chosen:
            assert part["mean_rank"] is part["zero"] is None
            continue
        _, ranks, nonzeros, zeros = zip(*chosen, strict=True)
        assert part["mean_rank"] == pytest.approx(sum(ranks) / len(ranks))
        assert part["median_rank"] == sorted(ranks)[(len(ranks) - 1) // 2]
        assert part["in_beam"] == pytest.approx(sum(r <= BEAM for r in ranks) / len(ranks))
        assert part["nonzeros"] == pytest.approx(sum(nonzeros) / len(nonzeros))
        assert part["zero"] == part["words_zero"] == pytest.approx(sum(zeros) / len(zeros))
    assert (found["all"]["zero"] > 0) == bool(flags)
    ensemble = Translator("toy", ["a", "b"], [model, model], toy.task())
    with pytest.raises(AnalysisError, match="not an ensemble"):
        measure_gold(ensemble, [batch], "test", WordClasses(words, training, "none"))


def test_a_word_is_lost_with_any_of_its_tokens(tmp_path):
    words = Dictionary()
    for piece in ("a@@", "b", "c"):
        words.add_symbol(piece)
    task = toy.task()
    task.src_dict = task.tgt_dict = words
    model = toy.model("--output-transform", "sparsemax", for_task=task, criterion="").eval()
    a, b, c = (words.index(piece) for piece in ("a@@", "b", "c"))
    projection = model.decoder.output_projection.linear
    torch.nn.init.zeros_(projection.weight)
    projection.bias = torch.nn.Parameter(torch.zeros(len(words)))
    projection.bias.data[[a, c, words.eos()]] = 5.0  # all but b are possible
    batch = toy.batch(words, ((2, 3),))
    batch["target"] = torch.tensor([[a, b, c, words.eos()]])
    classes = WordClasses(words, write(tmp_path / "text", "c"), "subword_nmt")
    found = measure_gold(Translator("toy", [], [model], task), [batch], "test", classes)["all"]
    assert (found["tokens"], found["words"]) == (4, 3)
    assert found["zero"] == 1 / 4 and found["words_zero"] == pytest.approx(1 / 3)
    assert found["nonzeros"] == 3
