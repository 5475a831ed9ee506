"""Word links from attention: null attention makes none, and padding changes none."""

from argparse import Namespace

import pytest
import torch
from fairseq import utils

import toy
from fairseq_sparse.generation import SparseSequenceScorer
from fairseq_sparse.generation.alignment import extract_hard_alignment

PAD, EOS = 1, 2
SOURCE = torch.tensor([PAD, 5, 6, 7, EOS])
TARGET = torch.tensor([8, 9, 10, EOS])


def links(attention, source=SOURCE, target=TARGET):
    return extract_hard_alignment(attention, source, target, PAD, EOS)


def test_attention_without_null_rows_is_linked_as_stock_does():
    attention = torch.rand(4, 5)
    stock = utils.extract_hard_alignment(attention, SOURCE, TARGET, PAD, EOS)
    assert links(attention) == stock and len(stock) == 3


def test_null_attention_links_to_nothing():
    attention = torch.rand(4, 5)
    attention[1] = 0
    assert [target for _, target in links(attention)] == [0, 2]
    # which stock links to the first word
    assert (0, 1) in utils.extract_hard_alignment(attention, SOURCE, TARGET, PAD, EOS)


def test_attention_to_padding_and_eos_alone_links_to_nothing():
    attention = torch.zeros(4, 5)
    attention[:, 0] = attention[:, -1] = 0.5
    attention[2, 3] = 0.1
    assert links(attention) == [(2, 2)]


def test_weights_below_zero_link_to_nothing():
    assert links(torch.full((4, 5), -0.1)) == []


def test_target_padded_beyond_the_attention():
    target = torch.tensor([8, EOS, PAD, PAD])
    attention = torch.tensor([[0.0, 0, 1, 0, 0], [1, 0, 0, 0, 0]])
    assert links(attention, target=target) == [(1, 0)]


def test_nothing_to_link():
    assert links(torch.rand(4, 5), target=torch.tensor([EOS, PAD, PAD, PAD])) == []
    assert links(torch.rand(4, 2), source=torch.tensor([PAD, EOS])) == []


LSTMS = {
    "sparse attention": ("lstm_sparse", "--attention", "sparsemax"),
    "sparse output": ("lstm_sparse", "--output-transform", "entmax15"),
    "dense": ("lstm_sparse",),
    "stock": ("lstm",),
}


def lstm(kind):
    arch, *flags = LSTMS[kind]
    flags += ["--encoder-embed-dim", 8, "--decoder-embed-dim", 8, "--decoder-out-embed-dim", 8]
    model = toy.model(*flags, "--encoder-bidirectional", arch=arch, criterion="").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def batch_and_pairs():
    """A batch with padding on the left, and its pairs one by one."""
    words = toy.dictionary()
    batch = toy.batch(words, [(7, 4), (4, 4), (4, 6), (2, 3)])
    pairs = []
    for row, length in enumerate(batch["net_input"]["src_lengths"].tolist()):
        target = batch["target"][row : row + 1]
        end = int((target != words.pad()).sum())
        net_input = {
            "src_tokens": batch["net_input"]["src_tokens"][row : row + 1, -length:],
            "src_lengths": torch.tensor([length]),
            "prev_output_tokens": batch["net_input"]["prev_output_tokens"][row : row + 1, :end],
        }
        pairs.append({"net_input": net_input, "target": target[:, :end]})
    return words, batch, pairs


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(
    "names", [*([name] for name in LSTMS), ["stock", "sparse attention"]], ids="+".join
)
def test_links_of_an_lstm_do_not_depend_on_padding(names, kind):
    _, batch, pairs = batch_and_pairs()
    models = [lstm(name) for name in names]
    options = Namespace(beam=3, max_len_b=6, print_alignment=kind)
    generator = toy.task().build_generator(models, options)
    together = generator.generate(models, batch)
    alone = [generator.generate(models, pair)[0] for pair in pairs]
    for hypotheses, expected in zip(together, alone, strict=True):
        for hypothesis, other in zip(hypotheses, expected, strict=True):
            assert hypothesis["tokens"].equal(other["tokens"])
            assert len(hypothesis["alignment"]) > 0
            if kind == "hard":
                assert hypothesis["alignment"] == other["alignment"]
            for row, other_row in zip(hypothesis["alignment"], other["alignment"], strict=True):
                expected_row = pytest.approx([float(x) for x in other_row], abs=1e-4)
                assert [float(x) for x in row] == expected_row


@pytest.mark.parametrize("name", LSTMS)
def test_links_of_an_lstm_with_the_reference_do_not_depend_on_padding(name):
    words, batch, pairs = batch_and_pairs()
    models, scorer = [lstm(name)], SparseSequenceScorer(words, compute_alignment=True)
    together = [hypothesis["alignment"] for (hypothesis,) in scorer.generate(models, batch)]
    alone = [scorer.generate(models, pair)[0][0]["alignment"] for pair in pairs]
    assert together == alone and len(set(map(tuple, alone))) == len(alone)


def test_soft_links_with_the_reference_are_the_attention():
    words, batch, _ = batch_and_pairs()
    scorer = SparseSequenceScorer(words, compute_alignment="soft")
    for (hypothesis,) in scorer.generate([lstm("sparse attention")], batch):
        attention, rows = hypothesis["attention"], hypothesis["alignment"]
        # As fairseq-generate prints it: texts, without padding.
        assert all(isinstance(x, str) for row in rows for x in row)
        assert len(rows) == len(hypothesis["tokens"])
        for row, weights in zip(rows, attention, strict=False):
            largest = sorted(weights.tolist())[-len(row) :]  # those of padding are 0
            assert sorted(map(float, row)) == pytest.approx(largest, abs=1e-5)
            assert largest[-1] > 0


def test_attention_whose_padding_is_in_two_places_has_no_mean():
    words, batch, pairs = batch_and_pairs()
    models, scorer = [lstm("stock"), toy.model()], SparseSequenceScorer(words, None, True)
    with torch.no_grad():
        assert scorer.generate(models, pairs[1])[0][0]["alignment"]
        with pytest.raises(ValueError, match="--print-alignment: .* use --batch-size 1"):
            scorer.generate(models, batch)
