"""Whole Transformers with any kind of attention."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from fairseq.models import build_model
from omegaconf import OmegaConf

import toy
from attention_cases import CASES
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fairseq_sparse.ops.reference import attention as reference

PAD = 1
NOT_STOCK = [case for case in CASES if case != "softmax"]
ONE_OF_EACH_NORM = ["softmax_gated", "relu_rmsnorm", "rela_i", "rela_g", "rela_g_layernorm"]
SOFTMAX_BY_PLACE = [
    flag for place in ("enc", "dec", "cross") for flag in (f"--attention-{place}", "softmax")
]
LAYOUTS = [
    ("--encoder-normalize-before", "--decoder-normalize-before"),
    ("--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5),
    ("--no-cross-attention",),
    ("--no-cross-attention", "--cross-self-attention"),
    ("--share-all-embeddings", "--layernorm-embedding"),
    ("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32),
    ("--quant-noise-pq", 0.2, "--quant-noise-pq-block-size", 4),
]


def flags_of(case):
    """Return the flags of a case, with an alpha only if the case sets one."""
    options = CASES[case]
    flags = ["--attention", options["attention"]]
    if "alpha" in options:
        flags += ["--attention-alpha", options["alpha"]]
    flags += ["--attention-alpha-learnable"] * options.get("alpha_learnable", False)
    return flags + ["--attention-scale-queries"] * options.get("scale_queries", False)


@pytest.fixture(scope="module")
def task():
    return toy.task()


@pytest.fixture
def sample(task):
    return toy.batch(task.target_dictionary)


@pytest.fixture
def in_parts(monkeypatch):
    monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", 20)
    monkeypatch.setattr(reference, "_CHUNK_QUERIES", 1)


def logits_of(model, sample):
    return model(**sample["net_input"])[0]


def loss_of(model, sample):
    target = sample["target"].flatten()
    return model.decoder.output_projection.transform.loss(
        logits_of(model, sample).flatten(0, 1), target, ignore_index=PAD, reduction="sum"
    )


def gradients(model, sample):
    model.zero_grad()
    torch.manual_seed(3)  # for dropout
    loss_of(model, sample).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", NOT_STOCK)
def test_a_base_transformer_has_so_many_parameters_more(case, task):
    width, heads, attentions = 512, 8, 6 + 2 * 6
    vectors = {"relu_rmsnorm": 1, "rela_i": 1, "rela_g_layernorm": 3}
    vectors |= {"softmax_gated": 1, "softmax_rmsnorm_gated": 2}
    vectors |= {"relu_centred": 2, "alpha_relu_rmsnorm_gated": 2}
    added = vectors.get(case, 2 if case.startswith("rela_g") else 0) * width
    if case == "entmax_learned":
        added = heads
    elif case == "entmax15_scaled":
        added = 2 * heads * (width + 1)

    def count(*flags, arch):
        with torch.device("meta"):
            model = toy.model(*flags, arch=arch, for_task=task)
        return sum(parameter.numel() for parameter in model.parameters())

    stock = count(arch="transformer")
    assert count(*flags_of(case), arch="transformer_sparse") == stock + attentions * added


@pytest.mark.each_value
@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
@pytest.mark.parametrize("case", CASES)
def test_every_kind_trains_with_every_output_transform(case, transform, task, sample):
    model = toy.model(
        *flags_of(case), "--output-transform", transform, "--output-tau", 0.5, for_task=task
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    before = loss_of(model.eval(), sample).item()
    found = gradients(model, sample)
    # fairseq 0.12.2 adds copies of an encoder layer's parameters that nothing uses.
    used = {name for name, _ in model.named_parameters() if not is_copy(name)}
    assert set(found) == used
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    for name, gradient in found.items():
        if ".norm." in name or "alpha_logit" in name or "query_scale" in name:
            assert (gradient != 0).any()
    optimizer.step()
    assert loss_of(model, sample).item() < before


def is_copy(name):
    part = name.rpartition(".")[2]
    return "encoder.layers" in name and part.startswith(("in_proj_", "out_proj_", "fc1_", "fc2_"))


@pytest.mark.parametrize("flags", LAYOUTS, ids=lambda flags: " ".join(map(str, flags)))
@pytest.mark.parametrize("case", ["rela_g", "entmax_learned"])
def test_every_layout_trains(case, flags, task, sample):
    model = toy.model(*flags_of(case), *flags, for_task=task).train()
    found = gradients(model, sample)
    assert found and all(torch.isfinite(gradient).all() for gradient in found.values())
    assert torch.isfinite(logits_of(model.eval(), sample)).all()
    if "--no-cross-attention" in flags:
        assert not any("encoder_attn" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("case", ["softmax", "rela_g", "entmax_learned"])
def test_checkpointed_activations_give_the_same_gradients(case, task, sample, in_parts):
    """Also where the attention itself recomputes its parts."""
    plain = toy.model(*flags_of(case), for_task=task).double().train()
    checkpointed = (
        toy.model(*flags_of(case), "--checkpoint-activations", for_task=task).double().train()
    )
    checkpointed.load_state_dict(plain.state_dict())
    calls = []
    for model in (plain, checkpointed):
        model.encoder.layers[0].self_attn.register_forward_hook(lambda m, *_: calls.append(m))
    expected = gradients(plain, sample)
    assert len(calls) == 1
    actual = gradients(checkpointed, sample)
    assert len(calls) == 3  # once more, for its gradient
    assert list(actual) == list(expected)
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("case", ["rela_g", "entmax_learned"])
def test_attention_in_parts_trains_the_same(case, task, sample, monkeypatch):
    model = toy.model(*flags_of(case), "--attention-dropout", 0, for_task=task).double().train()
    whole = gradients(model, sample)
    monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", 20)
    monkeypatch.setattr(reference, "_CHUNK_QUERIES", 1)
    for name, gradient in gradients(model, sample).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("case", ["rela_g", "entmax_learned", "softpick"])
def test_beam_search_by_hand(case, task, sample):
    """Each step gives what the whole prefix gives at once: for sentences of different lengths with
    two hypotheses each, which change places, and when finished sentences leave the batch."""
    model = toy.model(*flags_of(case), for_task=task).double().eval()
    source = sample["net_input"]
    orders = [[1, 1, 2, 3, 5, 4], [0, 0, 3, 2, 4, 4], [1, 0, 4, 5], [1, 1, 2, 3], [2, 3]]
    twice = torch.arange(3).repeat_interleave(2)
    with torch.no_grad():
        encoder_out = model.encoder(source["src_tokens"], source["src_lengths"])
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, twice)
        prefix, state = torch.full((6, 1), 2), {}
        for order in map(torch.tensor, orders):
            step, extra = model.decoder(prefix, encoder_out=encoder_out, incremental_state=state)
            full, all_extra = model.decoder(prefix, encoder_out=encoder_out)
            torch.testing.assert_close(step[:, 0], full[:, -1], rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(extra["attn"][0][:, 0], all_extra["attn"][0][:, -1])
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            prefix = torch.cat([prefix[order], torch.randint(4, 20, (len(order), 1))], 1)


def test_attention_over_the_source_is_returned_where_it_is_asked_for(task, sample):
    """In training it would cost the memory that computing in parts saves."""
    model = toy.model("--attention", "rela_g", for_task=task)
    source, target = sample["net_input"]["src_tokens"], sample["net_input"]["prev_output_tokens"]
    for training in (False, True):
        model.train(training)
        (attention,) = model(**sample["net_input"])[1]["attn"]
        assert (attention is None) == training
        (asked_for,) = model(**sample["net_input"], alignment_layer=0)[1]["attn"]
        assert asked_for.shape == (*target.shape, source.size(1))
        assert (asked_for.transpose(1, 2)[source == PAD] == 0).all()
    # The flag of stock's criterion with alignments, which does not ask.
    model = toy.model(for_task=task, load_alignments=True).train()
    assert model(**sample["net_input"])[1]["attn"][0].shape == asked_for.shape


def test_alignments_are_trained_from_a_hydra_file(sample):
    name = "transformer_sparse_tiny"
    for wanted in (False, True):
        config = OmegaConf.create({"model": {"_name": name, "arch": name}})
        model = build_model(config.model, toy.task(load_alignments=wanted)).train()
        (attention,) = model(**sample["net_input"])[1]["attn"]
        assert (attention is not None) == wanted


@pytest.mark.parametrize("case", ["softmax", "rela_g", "entmax_learned", "entmax15_scaled"])
def test_a_reloaded_model_gives_the_numbers_of_the_one_in_memory(case, task, sample, tmp_path):
    """In fairseq 0.12.2 a loaded, never trained encoder would take PyTorch's fused layers."""
    trained = toy.model(*flags_of(case), for_task=task).train()
    gradients(trained, sample)
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    loaded = toy.model(*flags_of(case), for_task=task, seed=2)
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"))
    with torch.no_grad():
        ours, theirs = (logits_of(model.eval(), sample) for model in (loaded, trained))
    assert torch.equal(ours, theirs)


IN_A_NEW_PROCESS = """
import sys

import torch

import toy

for path in sys.argv[1:]:
    saved = torch.load(path)
    model = toy.model(*saved["flags"], seed=2).eval()
    model.load_state_dict(saved["model"])
    with torch.no_grad():
        logits = model(**toy.batch(toy.dictionary())["net_input"])[0]
    print(saved["flags"][1], torch.equal(logits, saved["logits"]))
"""


def test_a_new_process_gives_the_numbers_of_this_one(task, sample, tmp_path):
    cases = ("rela_g", "relu_rmsnorm", "entmax_learned")
    for case in cases:
        model = toy.model(*flags_of(case), for_task=task).train()
        gradients(model, sample)
        with torch.no_grad():
            logits = logits_of(model.eval(), sample)
        saved = {"flags": flags_of(case), "model": model.state_dict(), "logits": logits}
        torch.save(saved, tmp_path / f"{case}.pt")
    (tmp_path / "new_process.py").write_text(IN_A_NEW_PROCESS)
    folders = (toy.ROOT, toy.ROOT / "tests", toy.ROOT / "tests" / "helpers", tmp_path)
    output = toy.run(
        "new_process",
        *(tmp_path / f"{case}.pt" for case in cases),
        env={"PYTHONPATH": os.pathsep.join(map(str, folders))},
    ).stdout
    expected = [f"{CASES[case]['attention']} True" for case in cases]
    assert output.strip().splitlines()[-3:] == expected


@pytest.mark.parametrize(
    "case",
    [
        "sparsemax",
        "entmax15",
        "entmax",
        "relu",
        "relu_length",
        "relu_l1",
        "alpha_relu",
        "softpick",
        "sigmoid",
    ],
)
def test_a_kind_without_parameters_starts_from_a_stock_checkpoint(case, task, sample):
    stock = toy.model(arch="transformer_tiny", for_task=task, seed=7)
    model = toy.model(*flags_of(case), for_task=task)
    model.load_state_dict(copy.deepcopy(stock.state_dict()), strict=True)
    stock.load_state_dict(copy.deepcopy(model.state_dict()), strict=True)
    for name, parameter in model.named_parameters():
        name = name.replace(".linear.", ".")
        assert torch.equal(parameter, stock.get_parameter(name))
    assert not torch.allclose(logits_of(model.eval(), sample), logits_of(stock.train(), sample))


@pytest.mark.parametrize("case", [*ONE_OF_EACH_NORM, "entmax_learned", "entmax15_scaled"])
def test_a_model_in_bfloat16_trains(case, task, sample):
    """Every parameter is bf16, as with --memory-efficient-bf16."""
    model = toy.model(*flags_of(case), for_task=task).bfloat16().train()
    logits = logits_of(model, sample)
    assert logits.dtype == torch.bfloat16
    F.cross_entropy(logits.float().flatten(0, 1), sample["target"].flatten()).backward()
    for name, parameter in model.named_parameters():
        if not is_copy(name):
            assert torch.isfinite(parameter.grad).all(), name


def test_torchscript_is_refused_by_the_name_of_the_flag(task):
    for flags in (["--attention", "rela_g"], ["--attention-cross", "entmax15"]):
        model = toy.model(*flags, for_task=task)
        with pytest.raises(NotImplementedError, match="TorchScript.*--attention"):
            torch.jit.script(model)


def test_softmax_in_every_place_still_scripts(task, sample):
    model = toy.model(*SOFTMAX_BY_PLACE, for_task=task).train()
    logits_of(model, sample)  # fairseq 0.12.2: only a model that has trained skips fused layers
    model.eval()
    scripted = torch.jit.script(model)
    net_input = sample["net_input"]
    actual = scripted(*(net_input[k] for k in ("src_tokens", "src_lengths", "prev_output_tokens")))
    torch.testing.assert_close(actual[0], logits_of(model, sample))
