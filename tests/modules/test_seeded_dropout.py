from argparse import Namespace

import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import nn

import toy
from fairseq_sparse.modules.seeded_dropout import SeededDropout, set_dropout

SPARSE = {
    "an output": ("--output-transform", "entmax15"),
    "alpha-ReLU": ("--output-transform", "alpha_relu", "--output-tau", 1.0),
    "attention": ("--attention", "rela_g"),
    "attention in one place": ("--attention-cross", "entmax15"),
}


def dropouts(model):
    return [module for module in model.modules() if isinstance(module, FairseqDropout)]


LSTM = ("--encoder-layers", 2, "--decoder-layers", 2)


def lstm(*flags, arch="lstm_sparse"):
    return toy.model(*LSTM, *flags, arch=arch, criterion="")


@pytest.mark.parametrize("flags", SPARSE.values(), ids=SPARSE)
def test_a_sparse_transformer_has_it_wherever_stock_has_dropout(flags):
    rates = ("--dropout", 0.3, "--attention-dropout", 0.2, "--activation-dropout", 0.1)
    ours, stock = toy.model(*flags, *rates), toy.model(*rates, arch="transformer_tiny")
    assert all(type(module) is SeededDropout for module in dropouts(ours))
    assert [each.p for each in dropouts(ours)] == [each.p for each in dropouts(stock)]
    assert {each.p for each in dropouts(ours)} == {0.3, 0.2, 0.1}


@pytest.mark.parametrize("flags", [SPARSE["an output"], ("--attention", "sparsemax")])
def test_a_sparse_lstm_has_it_wherever_stock_has_dropout(flags):
    ours, stock = lstm(*flags), lstm(arch="lstm")
    assert len(dropouts(ours)) == len(dropouts(stock)) > 0
    assert all(type(module) is SeededDropout for module in dropouts(ours))


@pytest.mark.parametrize("options", [{"output_transform": "entmax15"}, {"attention": "rela_g"}])
def test_a_sparse_language_model_has_it_wherever_stock_has_dropout(options):
    ours, stock = toy.language_model(**options), toy.language_model("transformer_lm")
    assert len(dropouts(ours)) == len(dropouts(stock)) > 0
    assert all(type(module) is SeededDropout for module in dropouts(ours))


@pytest.mark.parametrize("build", [toy.model, lstm, toy.language_model])
def test_with_softmax_everywhere_dropout_is_stocks_own(build):
    model = build()
    assert dropouts(model)
    assert all(type(module) is FairseqDropout for module in dropouts(model))


def test_it_acts_in_training_and_where_generation_is_to_keep_it():
    x = torch.ones(20, 30)
    module = SeededDropout(0.5, module_name="Somewhere")
    assert (module.train()(x) == 0).any()
    assert module.eval()(x) is x
    module.make_generation_fast_("part", retain_dropout=True, retain_dropout_modules=["Other"])
    assert module(x) is x
    module.make_generation_fast_("part", retain_dropout=True)  # --retain-dropout
    assert (module(x) == 0).any()
    assert SeededDropout(0.0).train()(x) is x


def test_a_model_with_a_sparse_output_still_scripts():
    task = toy.task()
    model = toy.model("--output-transform", "entmax15", "--dropout", 0.5, for_task=task).train()
    net_input = toy.batch(task.target_dictionary)["net_input"]
    model(**net_input)  # fairseq 0.12.2: only a model that has trained skips fused layers
    scripted = torch.jit.script(model.eval())
    arguments = [net_input[name] for name in ("src_tokens", "src_lengths", "prev_output_tokens")]
    torch.testing.assert_close(scripted(*arguments)[0], model(**net_input)[0])
    scripted.train()
    first, second = scripted(*arguments)[0], scripted(*arguments)[0]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("flags", SPARSE.values(), ids=SPARSE)
def test_layers_that_are_computed_again_drop_the_same_entries(flags):
    """--checkpoint-activations restores PyTorch's generator, from which the seed is drawn."""
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    gradients = []
    for more in ((), ("--checkpoint-activations",)):
        model = toy.model(*flags, "--dropout", 0.3, *more, for_task=task).train()
        torch.manual_seed(5)
        model(**sample["net_input"])[0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    whole, again = gradients
    torch.testing.assert_close(again, whole, rtol=1e-3, atol=1e-3)


def test_a_model_of_ones_own_needs_no_flags_of_attention():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = FairseqDropout(0.1)

    own = Own()
    set_dropout(own, Namespace(output_transform="entmax15"))
    assert isinstance(own.dropout, SeededDropout)
