import math
import random
import re
from argparse import Namespace

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import AdaptiveInput

import toy
from commands import logged, output_flags
from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.models.transformer_lm_sparse import TransformerLMSparseModel
from fairseq_sparse.modules import seeded_dropout
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention
from fairseq_sparse.ops import backends
from op_cases import attends_by_kernels

LAYOUTS = [
    {},
    {"share_decoder_input_output_embed": True},
    {"decoder_normalize_before": True, "decoder_output_dim": 8},
    {"character_embeddings": True},
    {"adaptive_softmax_cutoff": "8,12"},
    {"adaptive_input": True, "adaptive_input_cutoff": "8,12"},
    {
        **{"adaptive_input": True, "adaptive_input_cutoff": "8,12", "tie_adaptive_weights": True},
        "adaptive_softmax_cutoff": "8,12",
    },
]


model = toy.language_model


def tokens():
    return toy.batch(toy.dictionary())["net_input"]["prev_output_tokens"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: " ".join(layout) or "plain")
def test_with_softmax_it_is_the_stock_language_model(layout, monkeypatch):
    """Where dropout is fairseq's, with which it draws the same masks."""
    monkeypatch.setattr(seeded_dropout, "dropout", torch.nn.functional.dropout)
    sparse, stock = model(**layout), model(arch="transformer_lm", **layout)
    assert list(sparse.state_dict()) == list(stock.state_dict())
    for ours, theirs in zip(sparse.parameters(), stock.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    stock.load_state_dict(sparse.state_dict())
    sparse.load_state_dict(stock.state_dict())
    results = []
    for each in (sparse, stock):
        torch.manual_seed(5)
        output = each.train()(tokens())
        output[0].sum().backward()
        sample = {"target": tokens()}
        log_probs = each.get_normalized_probs(output, log_probs=True, sample=sample).detach()
        results.append([output[0], log_probs, *(p.grad for p in each.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_every_transform_gives_its_probabilities(transform):
    sparse = model(output_transform=transform, output_tau="0.5").eval()
    projection = sparse.decoder.output_projection
    output = sparse(tokens())
    probs = sparse.get_normalized_probs(output, log_probs=False)
    assert torch.equal(probs, projection.transform.probs(output[0]))
    assert (transform == "softmax") == bool((probs > 0).all())
    torch.testing.assert_close(
        sparse.get_normalized_probs(output, log_probs=True), probs.log(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["softmax", "entmax15", "rela_g"])
def test_attention_is_causal_and_decodes_step_by_step(kind):
    sparse = model(attention=kind, output_transform="entmax15").double().eval()
    ours = [
        isinstance(layer.self_attn, SparseMultiheadAttention) for layer in sparse.decoder.layers
    ]
    assert ours == [kind != "softmax"] * 2
    words = tokens()[2:]  # the longest: no padding
    whole = sparse(words)[0]
    state = {}
    for length in range(1, words.size(1) + 1):
        step = sparse.decoder(words[:, :length], incremental_state=state)[0][:, -1]
        # fairseq computes its softmax in fp32.
        torch.testing.assert_close(step, whole[:, length - 1], rtol=0, atol=1e-5)
    assert sparse.train()(words)[0].sum().isfinite()


@pytest.mark.parametrize(
    "options",
    [
        {"attention_alpha": 1.7},
        {"decoder_attention_heads": 3, "attention": "rela_g"},
        {"output_alpha": 1.0, "output_transform": "entmax"},
        {"output_tau": "0.5", "criterion": "cross_entropy"},
        {"adaptive_softmax_cutoff": "8,12", "output_transform": "entmax15"},
        {"adaptive_softmax_cutoff": "8,12", "criterion": "entmax_loss"},
        {"tie_adaptive_weights": True},
        {"share_decoder_input_output_embed": True, "decoder_output_dim": 8},
        {"share_decoder_input_output_embed": True, **LAYOUTS[5]},  # adaptive input
        {"share_decoder_input_output_embed": True, "character_embeddings": True},
    ],
    ids=" ".join,
)
def test_flags_that_do_not_fit_are_refused(options):
    with pytest.raises(ValueError, match="--" + [*options][0].replace("_", "-")):
        model(**options)


STOCK = [
    name
    for name, model in ARCH_MODEL_NAME_REGISTRY.items()
    if model == "transformer_lm" and name != model
]


@pytest.mark.parametrize("name", STOCK)
def test_every_architecture_of_fairseq_has_a_twin(name):
    ours, stock = Namespace(output_transform="softmax"), Namespace()
    ARCH_CONFIG_REGISTRY[name.replace("transformer_lm", "transformer_lm_sparse")](ours)
    ARCH_CONFIG_REGISTRY[name](stock)
    assert vars(ours) == {**vars(stock), "output_transform": "softmax"}
    assert ARCH_MODEL_REGISTRY[name.replace("_lm", "_lm_sparse")] is TransformerLMSparseModel


@pytest.mark.parametrize("transform", ["softmax", "entmax15"])
def test_a_sparse_output_has_adaptive_inputs_and_no_adaptive_softmax(transform):
    small = {"decoder_layers": 2, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 16}
    small |= {"adaptive_input_cutoff": "8,12", "adaptive_input_factor": 2.0}
    if transform == "softmax":
        small |= {"adaptive_softmax_cutoff": "8,12", "adaptive_softmax_factor": 2.0}
    args = Namespace(output_transform=transform, **small)
    ARCH_CONFIG_REGISTRY["transformer_lm_sparse_wiki103"](args)
    made = model(**{**vars(args), "base_shuffle": 0})  # False, which OmegaConf does not take
    assert isinstance(made.decoder.embed_tokens, AdaptiveInput)
    assert (made.decoder.adaptive_softmax is None) == (transform == "entmax15")


@pytest.mark.parametrize("kind", ["entmax15", "rela_g"])
def test_a_context_of_1024_tokens_is_causal_and_trains(kind):
    """The head has a width of 16, as the kernels require."""
    options = {"output_transform": "entmax15", "tokens_per_sample": 1024}
    sparse = model(attention=kind, decoder_attention_heads=1, **options).eval()
    assert sparse.max_positions() == 1024
    text = torch.randint(4, 20, (1, 1024), generator=torch.Generator().manual_seed(1))
    changed = text.clone()
    changed[:, 700:] = 4
    with torch.no_grad():
        whole, other, half = sparse(text)[0], sparse(changed)[0], sparse(text[:, :512])[0]
    assert torch.allclose(whole[:, :700], other[:, :700], atol=1e-5)
    assert torch.allclose(whole[:, :512], half, atol=1e-5)
    assert not torch.allclose(whole[:, 700:], other[:, 700:], atol=1e-3)
    sparse.train()(text)[0].square().sum().backward()
    if attends_by_kernels():
        assert backends.last_used()["attention"] == "cpu"
    for layer in sparse.decoder.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            gradient = getattr(layer.self_attn, name).weight.grad
            assert gradient.isfinite().all() and gradient.any()


def test_a_checkpoint_of_another_vocabulary_is_refused_by_name():
    state = model().state_dict()
    state["decoder.embed_tokens.weight"] = torch.zeros(7, 16)
    with pytest.raises(ValueError, match="decoder of the checkpoint.* 7 tokens.* has 20: give"):
        model().load_state_dict(state)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A random text, binarised for language models."""
    folder = tmp_path_factory.mktemp("lm")
    rng = random.Random(3)
    prefixes = []
    for split, lines in (("train", 200), ("valid", 40), ("test", 30)):
        words = [[f"W{rng.randrange(25)}" for _ in range(rng.randint(2, 6))] for _ in range(lines)]
        (folder / split).write_text("".join(" ".join(line) + "\n" for line in words))
        prefixes.append(f"--{split}pref={folder / split}")
    toy.run("fairseq_cli.preprocess", "--only-source", *prefixes, "--destdir", folder / "lm-bin")
    return folder / "lm-bin"


TASK = ("--task", "language_modeling", "--tokens-per-sample", 12)
SIZES = [
    f"--{name.replace('_', '-')}={value}"
    for name, value in toy.SMALL_LM.items()
    if name != "tokens_per_sample"
]


@pytest.fixture(scope="module")
def checkpoints(text, tmp_path_factory):
    """A dense and a sparse language model, each trained in two runs; the second resumes."""
    paths = {}
    for transform in ("softmax", "alpha_relu"):
        folder = tmp_path_factory.mktemp(transform)
        flags = (*TASK, "--arch", "transformer_lm_sparse", "--attention", "rela_g", *SIZES)
        flags = (*flags, *output_flags(transform))
        toy.train(folder, text, *flags)
        more = ("--max-update", 60, "--lr", 0.01)
        paths[transform], log = toy.train(folder, text, *flags, *more)
        assert "Loaded checkpoint" in log and "nonzeros" in log
    return paths


def evaluate(command, text, checkpoint, *flags, check=True):
    arguments = (text, "--user-dir", toy.USER_DIR, "--path", checkpoint, "--cpu", *TASK, *flags)
    result = toy.run(f"fairseq_cli.{command}", *arguments, check=check)
    return result.returncode, result.stdout + result.stderr


def test_validation_counts_every_token(text, checkpoints, tmp_path):
    state = load_checkpoint(checkpoints["alpha_relu"])
    tau = state["model"]["decoder.output_projection.tau"]
    assert tau.isfinite()
    state["model"]["decoder.output_projection.tau"] = tau + 0.3  # so that there are zeros
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    flags = ("--valid-subset", "test", "--max-tokens", 100, "--required-batch-size-multiple", 1)
    flags = (*flags, "--log-format", "json")
    _, log = evaluate("validate", text, path, *flags)
    (record,) = logged(log, "test")
    loss, gold_zero = _validate(path, text)
    assert float(record["test_loss"]) == pytest.approx(loss, rel=1e-3)
    assert float(record["test_gold_zero"]) == pytest.approx(100 * gold_zero, abs=0.01)
    assert 0 < gold_zero < 1


def test_a_dense_output_is_evaluated_by_fairseq(text, checkpoints):
    path = checkpoints["softmax"]
    _, log = evaluate("eval_lm", text, path, "--gen-subset", "test")
    evaluated = re.search(r"Loss \(base 2\): ([\d.]+)", log)
    assert float(evaluated[1]) == pytest.approx(_validate(path, text)[0] / math.log(2), rel=1e-3)


@pytest.mark.parametrize("command", ["eval_lm", "generate"])
def test_a_sparse_output_is_refused_where_fairseq_cannot_deal_with_zeros(
    command, text, checkpoints
):
    code, log = evaluate(command, text, checkpoints["alpha_relu"], check=False)
    assert code != 0 and "--task language_modeling_sparse" in log
    assert "Logging error" not in log and not re.search(r"^H-", log, re.MULTILINE)


def _validate(checkpoint, text):
    """Return the loss in nats and the share of tokens with probability 0, over the whole test set,
    computed sentence by sentence with the model of a checkpoint."""
    models, _, task = load_model_ensemble_and_task([str(checkpoint)], {"data": str(text)})
    task.load_dataset("test")
    projection = models[0].decoder.output_projection
    total = impossible = count = 0
    for sample in map(task.dataset("test").collater, ([item] for item in task.dataset("test"))):
        with torch.no_grad():
            logits = models[0].eval()(**sample["net_input"])[0][0]
        target = sample["target"][0]
        total += projection.transform.loss(logits, target, reduction="sum").item()
        impossible += int(
            (projection.transform.probs(logits).gather(1, target[:, None]) == 0).sum()
        )
        count += len(target)
    return total / count, impossible / count
