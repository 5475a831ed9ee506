"""SparseEnsemble, which runs its models on live hypotheses only, against running each alone."""

import math
import random

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.lstm import LSTMDecoder, LSTMEncoder, LSTMModel
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

import toy
from fairseq_sparse.generation.sparse_ensemble import SparseEnsemble
from fairseq_sparse.generation.sparse_sequence_generator import SparseSequenceGenerator

SENTENCES, BEAM, STEPS = 4, 3, 6
KINDS = ["softmax", "entmax15", "rela_g", "lstm_sparse"]


def lstm(words: Dictionary) -> LSTMModel:
    torch.manual_seed(5)
    encoder = LSTMEncoder(words, 8, 8, 1, left_pad=True, bidirectional=False)
    return LSTMModel(encoder, LSTMDecoder(words, 8, 8, 8, 1, encoder_output_units=8)).eval()


def sparse_lstm(task) -> LSTMModel:
    flags = [
        "--output-transform",
        "entmax15",
        "--attention",
        "sparsemax",
        "--encoder-bidirectional",
    ]
    flags += ["--encoder-layers", 2, "--decoder-layers", 2, "--decoder-hidden-size", 10]
    flags += ["--encoder-embed-dim", 8, "--decoder-embed-dim", 8, "--decoder-out-embed-dim", 8]
    model = toy.model(*flags, arch="lstm_sparse", for_task=task, seed=7, criterion="").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def make_models(names: str) -> tuple[list, Dictionary]:
    task = toy.task()
    flags = {
        "softmax": [],
        "entmax15": ["--output-transform", "entmax15"],
        "rela_g": ["--attention", "rela_g", "--output-transform", "sparsemax"],
    }
    models = [
        lstm(task.target_dictionary)
        if name == "lstm"
        else sparse_lstm(task)
        if name == "lstm_sparse"
        else toy.model(*flags[name], for_task=task, seed=seed).eval()
        for seed, name in enumerate(names.split("+"))
    ]
    return models, task.target_dictionary


def distribution(models, net_input: dict[str, Tensor], row: int, tokens: Tensor) -> Tensor:
    """Return the models' mean distribution of the token after one hypothesis, run alone."""
    lengths = net_input["src_lengths"][row : row + 1]
    source = net_input["src_tokens"][row : row + 1, -lengths.item() :]  # padding is on the left
    probs = [
        model.get_normalized_probs(model(source, lengths, tokens[None]), log_probs=False)[0, -1]
        for model in models
    ]
    return torch.stack(probs).mean(0)


@pytest.mark.each_value
@torch.no_grad()
@pytest.mark.parametrize("names", [*KINDS, "lstm", "entmax15+lstm", "lstm_sparse+lstm_sparse+lstm"])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_models_run_on_each_live_hypothesis(names: str, seed: int) -> None:
    models, words = make_models(names)
    rng = random.Random(seed)
    net_input = toy.batch(words, [(6, 1), (5, 1), (3, 1), (2, 1)])["net_input"]
    ensemble = SparseEnsemble(models, words.eos())
    # Called as by SequenceGenerator, but with random decisions in place of a search.
    encoder_outs = ensemble.forward_encoder(net_input)
    hypotheses = [(row, [words.eos()]) for row in range(SENTENCES) for _ in range(BEAM)]
    order = torch.tensor([row for row, _ in hypotheses])
    encoder_outs = ensemble.reorder_encoder_out(encoder_outs, order)
    states = [{} for _ in models]
    numbers = set()
    for step in range(STEPS):
        tokens = torch.tensor([tokens for _, tokens in hypotheses])
        found, attention = ensemble.forward_decoder(tokens, encoder_outs, states)
        assert found.shape == (len(hypotheses), len(words))
        live = [step == 0 or tokens[-1] != words.eos() for _, tokens in hypotheses]
        numbers.add(sum(live))
        for (row, hypothesis), alive, log_p, weights in zip(
            hypotheses, live, found, attention, strict=True
        ):
            if not alive:
                assert log_p.isneginf().all() and not weights.any()
                continue
            expected = distribution(models, net_input, row, torch.tensor(hypothesis))
            torch.testing.assert_close(log_p.exp(), expected, rtol=1e-3, atol=1e-5)
        if step > 0 and len(hypotheses) > BEAM and rng.random() < 0.3:  # a sentence ends
            gone = rng.choice(sorted({row for row, _ in hypotheses}))
            kept = [place for place, (row, _) in enumerate(hypotheses) if row != gone]
        else:
            kept = list(range(len(hypotheses)))
        new, order = [], []
        for start in range(0, len(kept), BEAM):
            alive = [place for place in kept[start : start + BEAM] if live[place]]
            for slot in range(BEAM):
                place = rng.choice(alive)
                # The first of a sentence stays alive, so that the sentence does.
                dead = slot > 0 and rng.random() < 0.5
                token = words.eos() if dead else rng.randrange(4, len(words))
                new.append((hypotheses[place][0], [*hypotheses[place][1], token]))
                order.append(place)
        hypotheses = new
        ensemble.reorder_incremental_state(states, torch.tensor(order))
        encoder_outs = ensemble.reorder_encoder_out(encoder_outs, torch.tensor(order))
    assert len(numbers) > 1


@torch.no_grad()
def test_dead_hypotheses_and_twins_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    (model,), words = make_models("entmax15")
    sample = toy.batch(words)
    rows, forward = [], model.decoder.forward

    def count_rows(tokens, *args, **kwargs):
        rows.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    monkeypatch.setattr(model.decoder, "forward", count_rows)
    # At this temperature, hardly any word but the best has a chance.
    generator = SparseSequenceGenerator(
        [model], words, beam_size=5, max_len_b=8, min_len=4, temperature=0.02
    )
    generator.generate(None, sample)
    assert rows[0] == len(sample["id"]) and max(rows) < 2 * len(sample["id"])


@torch.no_grad()
@pytest.mark.parametrize("names", KINDS)
def test_attention_is_left_out_where_it_is_not_wanted(names: str) -> None:
    models, words = make_models(names)
    sample = toy.batch(words, [(6, 5), (4, 3), (2, 7)])
    lists = [
        SparseSequenceGenerator(
            models, words, beam_size=3, max_len_b=6, attention=attention
        ).generate(None, sample)
        for attention in (True, False)
    ]
    for with_it, without in zip(*lists, strict=True):
        for one, other in zip(with_it, without, strict=True):
            assert one["tokens"].equal(other["tokens"])
            assert one["positional_scores"].equal(other["positional_scores"])
            length = len(sample["net_input"]["src_tokens"][0])
            assert one["attention"].shape == (length, len(one["tokens"]))
            assert other["attention"].numel() == 0
            assert math.isfinite(one["score"])


def test_no_model_is_promised_a_number_of_rows_for_a_sentence() -> None:
    """A promise by fairseq's generator (it makes one to BART) is replaced by 1 row per sentence."""
    (model,), words = make_models("entmax15")
    promised = []
    model.set_beam_size = promised.append
    stock = SequenceGenerator([model], words, beam_size=4)
    SparseSequenceGenerator.from_generator(stock)
    assert promised == [4, 1]
