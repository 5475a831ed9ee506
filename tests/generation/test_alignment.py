import torch
from fairseq import utils

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
