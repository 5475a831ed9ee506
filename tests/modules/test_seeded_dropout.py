from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.modules import FairseqDropout

import toy
from fairseq_sparse.modules.seeded_dropout import SeededDropout

FLAGS = {
    "softmax everywhere": (),
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


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_transformer_has_it_wherever_stock_has_dropout(flags):
    rates = ("--dropout", 0.3, "--attention-dropout", 0.2, "--activation-dropout", 0.1)
    ours, stock = toy.model(*flags, *rates), toy.model(*rates, arch="transformer_tiny")
    assert all(type(module) is SeededDropout for module in dropouts(ours))
    assert [each.p for each in dropouts(ours)] == [each.p for each in dropouts(stock)]
    assert {each.p for each in dropouts(ours)} == {0.3, 0.2, 0.1}


@pytest.mark.parametrize("flags", [(), FLAGS["an output"], ("--attention", "sparsemax")])
def test_an_lstm_has_it_wherever_stock_has_dropout(flags):
    ours, stock = lstm(*flags), lstm(arch="lstm")
    assert len(dropouts(ours)) == len(dropouts(stock)) > 0
    assert all(type(module) is SeededDropout for module in dropouts(ours))


@pytest.mark.parametrize("options", [{}, {"output_transform": "entmax15"}, {"attention": "rela_g"}])
def test_a_language_model_has_it_wherever_stock_has_dropout(options):
    ours, stock = toy.language_model(**options), toy.language_model("transformer_lm")
    assert len(dropouts(ours)) == len(dropouts(stock)) > 0
    assert all(type(module) is SeededDropout for module in dropouts(ours))


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


STOCK = ["TransformerEncoder", "TransformerDecoder", "MultiheadAttention"]
STOCK += ["TransformerEncoderLayerBase", "TransformerDecoderLayerBase"]


def keeping_dropout(modules):
    generation = GenerationConfig(retain_dropout=True, retain_dropout_modules=modules)
    task = Namespace(_name="translation_sparse")
    return Namespace(generation=generation, task=task, common_eval=Namespace(path="x"))


@pytest.mark.parametrize("named", [None, STOCK[:1], STOCK[1:3], STOCK])
@pytest.mark.parametrize("options", [(), ("--attention", "entmax15")])
def test_it_is_kept_in_the_classes_that_fairseq_names(options, named):
    """As many modules keep their dropout as in fairseq's own model."""
    kept = []
    for model in (toy.model(*options), toy.model(arch="transformer_tiny", criterion="")):
        model.prepare_for_inference_(keeping_dropout(named))
        kept.append(sum(module.apply_during_inference for module in dropouts(model)))
    assert kept[0] == kept[1] > 0


def test_classes_that_a_model_does_not_have_are_refused():
    with pytest.raises(ValueError, match="--retain-dropout-modules.*TransformerEncoder"):
        toy.model().prepare_for_inference_(keeping_dropout(["LSTMEncoder"]))


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


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
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
