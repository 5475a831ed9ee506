"""Models with layers that PyTorch's or fairseq's quantisers have replaced."""

from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.modules.quantization import pq, scalar
from fairseq.quantization_utils import quantize_model_scalar
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as DynamicLinear
from torch.ao.quantization import quantize_dynamic

import toy
from commands import output_flags
from fairseq_sparse.criterions.sparse_criterion import (
    AlphaReLULossCriterion,
    EntmaxLossCriterion,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# PyTorch cannot quantise the layers of fairseq's own softmax attention.
ARCHITECTURES = {
    "transformer_sparse_tiny": ("--attention", "rela_g"),
    "lstm_sparse": ("--attention", "sparsemax", "--decoder-out-embed-dim", 32),
}
LAYERS = {"transformer_sparse_tiny": "decoder.output_projection", "lstm_sparse": "decoder.fc_out"}
TRANSFORMS = ("entmax15", "alpha_relu")
SIZES = ((6, 5), (4, 3), (2, 7))  # the longest source first, for LSTMs


def make_model(arch, transform, task=None, *flags):
    options = ["--output-transform", transform, *ARCHITECTURES[arch], "--dropout", 0, *flags]
    if transform == "alpha_relu":
        options += ["--output-tau", 0.1]
    criterion = output_flags(transform)[-1]
    model = toy.model(*options, arch=arch, for_task=task, criterion=criterion)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(20 if "lstm" in arch else 2)  # for zeros
    return model


def criterion_of(transform, task):
    make = AlphaReLULossCriterion if transform == "alpha_relu" else EntmaxLossCriterion
    return make(task, 0.1, False, False)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_dynamic_quantisation_reaches_the_output_and_search_still_knows_its_zeros(arch, transform):
    task = toy.task()
    sample = toy.batch(task.target_dictionary, SIZES)
    model = make_model(arch, transform, task).eval()
    quantised = quantize_dynamic(model, {nn.Linear})
    projection = quantised.decoder.output_projection
    assert type(projection.linear) is DynamicLinear
    assert not any(isinstance(part, nn.Linear) for part in projection.modules())
    features = torch.randn(50, model.decoder.output_projection.weight.size(1))
    exact = model.decoder.output_projection(features)
    error = (projection(features) - exact).abs().max()
    assert 0 < error < 0.03 * exact.abs().max()

    output = quantised(**sample["net_input"])
    probs = quantised.get_normalized_probs(output, log_probs=False)
    assert torch.equal(probs, model.decoder.output_projection.transform.probs(output[0]))
    log_probs = quantised.get_normalized_probs(output, log_probs=True)
    assert torch.equal(log_probs.isneginf(), probs == 0) and (probs == 0).any()
    generator = task.build_generator([quantised], GenerationConfig(beam=3, nbest=3, max_len_b=8))
    for hypotheses in generator.generate([quantised], sample):
        assert all(hypothesis["score"].isfinite() for hypothesis in hypotheses)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_search_adds_up_the_scores_of_the_quantised_layer(arch, transform):
    task = toy.task()
    sample = toy.batch(task.target_dictionary, [(5, 1)])
    model = make_model(arch, transform, task).eval()
    quantised = quantize_dynamic(model, {f"{LAYERS[arch]}.linear"})
    generator = task.build_generator([quantised], GenerationConfig(beam=1, max_len_b=8))
    ((hypothesis,),) = generator.generate([quantised], sample)
    tokens = hypothesis["tokens"].tolist()
    encoder_out = quantised.encoder.forward_torchscript(sample["net_input"])
    scores, exact = [], []
    for step, token in enumerate(tokens[: -1 if hypothesis.get("incomplete") else None]):
        previous = torch.tensor([[task.target_dictionary.eos(), *tokens[:step]]])
        features = quantised.decoder.extract_features(previous, encoder_out=encoder_out)[0]
        for each, found in ((quantised, scores), (model, exact)):
            # One row: the scale of the rounded activations depends on all rows of a product.
            output = (each.decoder.output_layer(features[:, -1:]), None)
            found.append(each.get_normalized_probs(output, log_probs=True)[0, 0, token])
    found = hypothesis["positional_scores"][: len(scores)]
    torch.testing.assert_close(found, torch.stack(scores), atol=1e-4, rtol=1e-4)
    assert not torch.equal(torch.stack(scores), torch.stack(exact))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_quantised_decoder_can_be_saved_and_loaded(transform):
    models = [make_model("transformer_sparse_tiny", transform) for _ in range(2)]
    with torch.no_grad():
        models[1].decoder.output_projection.weight.zero_()
    # The encoder layers of fairseq 0.12.2 cannot load quantised layers.
    first, second = (quantize_dynamic(model.eval(), {nn.Linear}).decoder for model in models)
    second.load_state_dict(first.state_dict())
    features = torch.randn(3, 64)
    expected = first.output_projection(features)
    assert torch.equal(second.output_projection(features), expected)


@pytest.fixture
def without_gpu(monkeypatch):
    """Without a GPU, keep fairseq's scalar quantiser from moving its scales to one."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_scalar_quantisation_noise_reaches_the_output_in_training(transform, without_gpu):
    task = toy.task()
    sample = toy.batch(task.target_dictionary, SIZES)
    criterion = criterion_of(transform, task)
    model = make_model("transformer_sparse_tiny", transform, task).train()
    keys = list(model.state_dict())
    before = criterion(model, sample)[0]
    quantised = scalar.quantize_model_(model, p=1, bits=8, update_step=1)
    assert "decoder.output_projection.linear" in quantised
    projection = model.decoder.output_projection
    assert isinstance(projection.linear, scalar.modules.IntLinear)
    projection.linear.p = 0  # noise in the output layer alone makes the difference below
    quiet = criterion(model, sample)[0]
    projection.linear.p = 1
    loss = criterion(model, sample)[0]
    loss.backward()
    assert loss != quiet and loss != before and loss.isfinite()
    assert projection.weight.grad.abs().sum() > 0
    assert list(model.state_dict()) == keys
    unfused = criterion_of(transform, task)
    unfused.fused_loss = False
    torch.testing.assert_close(unfused(model, sample)[0], loss)


def test_the_flags_of_quantisation_noise_build_a_model_that_trains_and_searches(without_gpu):
    task = toy.task()
    sample = toy.batch(task.target_dictionary, SIZES)
    pq_flags = ("--quant-noise-pq", 0.3, "--quant-noise-pq-block-size", 4)
    for flags, noise in ((pq_flags, 0), (("--quant-noise-scalar", 0.5), 0.5)):
        model = make_model("transformer_sparse_tiny", "entmax15", task, *flags)
        model = quantize_model_scalar(model, Namespace(quant_noise_scalar=noise))
        layer = model.decoder.output_projection.linear
        assert isinstance(layer, scalar.modules.IntLinear) == (noise > 0)
        loss = criterion_of("entmax15", task)(model.train(), sample)[0]
        loss.backward()
        assert loss.isfinite()
        model.eval()
        generator = task.build_generator([model], GenerationConfig(beam=2, max_len_b=5))
        assert all(generator.generate([model], sample))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_product_quantisation_replaces_the_output_layer(arch, transform):
    task = toy.task()
    sample = toy.batch(task.target_dictionary, SIZES)
    model = make_model(arch, transform, task).train()
    keys = {key for key in model.state_dict() if "tau" in key}
    layer = LAYERS[arch]
    replaced = pq.quantize_model_(
        model,
        pq.SizeTracker(model),
        [f"{layer}$|{layer}\\.linear"],
        {"Linear": ("in_features", {"*": 4})},
        {"Linear": ("in_features", {"*": 4})},
        verbose=False,
    )
    assert replaced == [f"{layer}.linear"]
    loss = criterion_of(transform, task)(model, sample)[0]
    loss.backward()
    assert model.decoder.output_projection.linear.centroids.grad.abs().sum() > 0
    state = model.state_dict()
    assert keys | {f"{layer}.centroids", f"{layer}.assignments"} <= set(state)
    model.load_state_dict(state)
    model.eval()
    generator = task.build_generator([model], GenerationConfig(beam=2, max_len_b=5))
    assert all(generator.generate([model], sample))
