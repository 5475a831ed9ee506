"""Teacher-forced probabilities, against running the model for one token at a time."""

import math

import numpy as np
import pytest
import torch

import toy
from automata import SparseLSTM
from fairseq_sparse.measure import translator as translator_module
from fairseq_sparse.measure.translator import (
    Translator,
    forced_steps,
    score_targets,
    search,
    with_targets,
)
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask

OUTPUTS = {
    "softmax": [],
    "entmax15": ["--output-transform", "entmax15"],
    "entmax": [
        "--output-transform",
        "entmax",
        "--output-alpha",
        "1.3",
        "--output-algorithm",
        "bisect",
    ],
    "alpha_relu": ["--output-transform", "alpha_relu", "--output-tau", "0.7"],
}


def model_for(output, seed=1):
    model = toy.model(*OUTPUTS[output], seed=seed).eval()
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(3)  # so that there are zeros
    return model


def translator_of(*models):
    words = toy.dictionary()
    task = TranslationSparseTask(TranslationSparseConfig(), words, words)
    return Translator("toy", [], list(models), task)


def one_by_one(models, batch, padding):
    """Return (row, token, log-probabilities) of every step, from unpadded prefixes run alone."""
    steps = []
    net_input = batch["net_input"]
    for row, target in enumerate(batch["target"]):
        source = net_input["src_tokens"][row]
        source = source[source != padding][None]
        target = target[target != padding]
        for length in range(1, len(target) + 1):
            previous = net_input["prev_output_tokens"][row, :length][None]
            p = 0
            for model in models:
                output = model(source, torch.tensor([source.size(1)]), previous)
                p = p + model.get_normalized_probs(output, log_probs=False)[0, -1].double()
            steps.append((row, int(target[length - 1]), (p / len(models)).log()))
    return steps


@pytest.mark.parametrize("chunk", [1, 4, 512])
@pytest.mark.parametrize("outputs", [*([name] for name in OUTPUTS), ["entmax15", "softmax"]])
@torch.no_grad()
def test_steps_are_those_of_one_token_at_a_time(outputs, chunk, monkeypatch):
    monkeypatch.setattr(translator_module, "_CHUNK", chunk)
    words = toy.dictionary()
    models = [model_for(name, seed).double() for seed, name in enumerate(outputs)]
    batch = toy.batch(words)
    expected = one_by_one(models, batch, words.pad())
    parts = list(forced_steps(models, batch["net_input"], batch["target"], words.pad()))
    assert max(len(part.token) for part in parts) <= chunk
    assert torch.cat([part.sentence for part in parts]).tolist() == [row for row, _, _ in expected]
    assert torch.cat([part.token for part in parts]).tolist() == [token for _, token, _ in expected]
    found = torch.cat([part.log_p for part in parts]).exp().double()
    by_hand = torch.stack([log_p for _, _, log_p in expected]).exp()
    torch.testing.assert_close(found, by_hand, rtol=1e-5, atol=1e-6)
    if outputs[-1] != "softmax":
        assert (found == 0).any() and (found > 0).any()
    for part in parts:
        by_token = [float(row[token]) for row, token in zip(part.log_p, part.token, strict=True)]
        assert part.token_log_p.tolist() == by_token


@torch.no_grad()
def test_models_of_fairseq_s_own():
    words = toy.dictionary()
    batch = toy.batch(words, sizes=((6, 5), (4, 3), (2, 7)))  # an LSTM wants the longest first
    stock = toy.model(arch="transformer_tiny").eval()
    for layer in stock.encoder.layers:
        layer.can_use_fastpath = False
    for model in (stock, SparseLSTM(words).eval()):
        # Compared on the whole batch: without the lengths, an LSTM reads the padding too.
        (part,) = forced_steps([model], batch["net_input"], batch["target"], words.pad())
        output = model(**batch["net_input"])
        expected = model.get_normalized_probs(output, log_probs=True)
        torch.testing.assert_close(part.log_p, expected[batch["target"] != words.pad()])


@pytest.mark.parametrize("outputs", [["softmax"], ["alpha_relu"], ["entmax15", "alpha_relu"]])
def test_a_string_s_score_is_that_of_the_search_which_found_it(outputs):
    translator = translator_of(*(model_for(name, seed) for seed, name in enumerate(outputs)))
    batch = toy.batch(toy.dictionary())
    ((sample, hypotheses),) = search(translator, [batch], beam=3)
    best = [hypos[0] for hypos in hypotheses]
    strings = [hypo["tokens"] for hypo in best]
    log_p = score_targets(translator, sample["net_input"], strings)
    assert log_p.dtype == torch.float64
    for score, hypo in zip(log_p.tolist(), best, strict=True):
        assert score == pytest.approx(hypo["positional_scores"].sum().item(), rel=1e-4)


def test_normalised_scores_are_those_of_p_divided_by_its_sum():
    translator = translator_of(model_for("alpha_relu"))
    words, batch = toy.dictionary(), toy.batch(toy.dictionary())
    strings = [hypos[0]["tokens"] for _, found in search(translator, [batch], 2) for hypos in found]
    net_input, target = with_targets(batch["net_input"], strings, words)
    steps = list(forced_steps(translator.models, net_input, target, words.pad()))
    raw = score_targets(translator, batch["net_input"], strings)
    scaled = translator.normalised()
    assert scaled.is_normalised
    normalised = score_targets(scaled, batch["net_input"], strings)
    assert not translator.is_normalised
    assert score_targets(translator, batch["net_input"], strings).equal(raw)
    for row, (before, after) in enumerate(zip(raw.tolist(), normalised.tolist(), strict=True)):
        sums = [part.log_p[part.sentence == row].exp().sum(1) for part in steps]
        assert after == pytest.approx(before - torch.cat(sums).log().sum().item(), rel=1e-4)


def test_what_the_output_is():
    entmax, relu = model_for("entmax"), model_for("alpha_relu")
    stock = toy.model(arch="transformer_tiny")
    assert translator_of(relu).is_sparse and not translator_of(relu, stock).is_sparse
    assert translator_of(entmax, stock).is_normalised and not translator_of(relu).is_normalised


def test_chosen_sentences_are_the_batches(tmp_path):
    data = toy.binarised_text(tmp_path, pairs=20)
    config = TranslationSparseConfig(
        data=str(data), dataset_impl=None, train_subset="train", required_seq_len_multiple=1
    )
    task = TranslationSparseTask.setup_task(config)
    model = toy.model(for_task=task)
    translator = Translator("toy", [], [model], task)
    for chosen in (None, range(7), [28, 3, 40]):
        batches = list(translator.batches("test", 40, chosen))
        numbers = np.concatenate([batch["id"].numpy() for batch in batches])
        assert sorted(numbers) == sorted(set(chosen or range(30)) & set(range(30)))
        assert len(batches) > (len(numbers) > 5)
        lengths = math.fsum(batch["ntokens"] for batch in batches)
        assert lengths == sum(len(task.dataset("test")[number]["target"]) for number in numbers)
