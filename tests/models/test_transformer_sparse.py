import copy

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf

import toy
from fairseq_sparse.modules import seeded_dropout
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

ARCHITECTURES = ("", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_wmt_en_de_big")
SMALL = ("--encoder-layers", 1, "--decoder-layers", 1)
LAYOUTS = [
    (),
    ("--share-all-embeddings",),
    ("--share-decoder-input-output-embed",),
    ("--encoder-normalize-before", "--decoder-normalize-before"),
    ("--checkpoint-activations",),
    ("--encoder-layerdrop", 0.3, "--decoder-layerdrop", 0.3),
    ("--adaptive-softmax-cutoff", "8,12"),
    ("--attention", "softmax"),
    [x for place in ("enc", "dec", "cross") for x in (f"--attention-{place}", "softmax")],
]


def named(flags):
    """Return the test id of flags."""
    return " ".join(map(str, flags)) or "plain"


def logits_of(model, sample):
    return model(**sample["net_input"])[0]


@pytest.mark.parametrize("suffix", ARCHITECTURES)
def test_architectures_have_the_sizes_of_the_stock_ones(suffix):
    sparse = toy.model(*SMALL, arch=f"transformer_sparse{suffix}")
    stock = toy.model(*SMALL, arch=f"transformer{suffix}")
    assert type(stock) is TransformerModel
    shapes = {key: value.shape for key, value in stock.state_dict().items()}
    assert {key: value.shape for key, value in sparse.state_dict().items()} == shapes


@pytest.mark.parametrize("flags", LAYOUTS, ids=named)
def test_with_softmax_it_is_the_stock_transformer(flags, monkeypatch):
    """Where dropout is fairseq's, with which it draws the same masks."""
    monkeypatch.setattr(seeded_dropout, "dropout", torch.nn.functional.dropout)
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    sparse = toy.model(*flags, for_task=task)
    stock_flags = () if "softmax" in flags else flags
    stock = toy.model(*stock_flags, arch="transformer_tiny", for_task=task)
    assert list(sparse.state_dict()) == list(stock.state_dict())
    for ours, theirs in zip(sparse.parameters(), stock.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    stock.load_state_dict(sparse.state_dict())
    sparse.load_state_dict(stock.state_dict())
    for module in stock.modules():
        module.ever_training = True  # the fast path of fairseq 0.12.2 fails
    for training in (True, False):
        toy.assert_same(sparse.train(training), stock.train(training), sample)


@pytest.mark.each_value
@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
@pytest.mark.parametrize("flags", LAYOUTS[:6], ids=named)
def test_every_layout_trains_with_every_transform(transform, flags):
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    model = toy.model(
        *flags, "--output-transform", transform, "--output-tau", 0.5, for_task=task
    ).train()
    projection = model.decoder.output_projection
    assert isinstance(projection, OutputProjection) and projection.transform.name == transform
    logits = logits_of(model, sample)
    target = sample["target"].flatten()
    loss = projection.transform.loss(logits.flatten(0, 1), target, ignore_index=1)
    loss.backward()
    gradient = projection.weight.grad
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0
    if "--share-all-embeddings" in flags:
        assert projection.weight is model.encoder.embed_tokens.weight


@pytest.mark.parametrize("transform", ["softmax", "alpha_relu"])
def test_a_reloaded_model_gives_the_numbers_of_the_one_in_memory(transform, tmp_path):
    """In fairseq 0.12.2 a loaded, never trained encoder would take PyTorch's fused layers."""
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    flags = ("--output-transform", transform, "--output-tau", 0.5)
    trained = toy.model(*flags, for_task=task).train()
    logits_of(trained, sample).sum().backward()
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    loaded = toy.model(*flags, for_task=task, seed=2)
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"))
    with torch.no_grad():
        ours, theirs = (m.eval()(**sample["net_input"]) for m in (loaded, trained))
        assert torch.equal(ours[0], theirs[0])
        for log in (True, False):
            assert torch.equal(
                loaded.get_normalized_probs(ours, log), trained.get_normalized_probs(theirs, log)
            )


def test_a_stock_checkpoint_starts_a_model_with_any_transform():
    stock = toy.model(arch="transformer_tiny", seed=7)
    for transform in OUTPUT_TRANSFORMS:
        model = toy.model("--output-transform", transform, "--output-tau", 0.5)
        model.load_state_dict(copy.deepcopy(stock.state_dict()), strict=True)
        assert torch.equal(
            model.decoder.output_projection.weight, stock.decoder.output_projection.weight
        )
        if transform == "alpha_relu":
            assert model.decoder.output_projection.transform.tau == 0.5


def test_incremental_decoding_equals_the_full_forward():
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    flags = ("--output-transform", "entmax15", "--attention", "entmax15")
    model = toy.model(*flags, for_task=task).double().eval()
    with torch.no_grad():
        full = logits_of(model, sample)
        encoder_out = model.encoder(
            sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        )
        state, previous = {}, sample["net_input"]["prev_output_tokens"]
        for step in range(previous.size(1)):
            logits = model.decoder(
                previous[:, : step + 1], encoder_out=encoder_out, incremental_state=state
            )[0]
            alive = sample["target"][:, step] != 1
            torch.testing.assert_close(logits[alive, 0], full[alive, step], atol=1e-9, rtol=0)


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_a_criterion_that_does_not_fit_is_refused_by_name(transform):
    fits = {"softmax": ["cross_entropy", "label_smoothed_cross_entropy", "entmax_loss"]}
    fits["alpha_relu"] = ["alpha_relu_loss"]
    for criterion in (
        "cross_entropy",
        "label_smoothed_cross_entropy",
        "entmax_loss",
        "alpha_relu_loss",
    ):
        flags = ("--output-transform", transform)
        if criterion in fits.get(transform, ["entmax_loss"]):
            toy.model(*flags, criterion=criterion)
            continue
        with pytest.raises(ValueError) as refusal:
            toy.model(*flags, criterion=criterion)
        assert criterion in str(refusal.value) and transform in str(refusal.value)


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_attention_that_can_be_0_is_not_trained_on_its_logarithm(kind):
    criterion = "label_smoothed_cross_entropy_with_alignment"
    if kind in ("softmax", "softmax_gated", "softmax_rmsnorm_gated", "sigmoid"):
        toy.model("--attention", kind, criterion=criterion)
    else:
        with pytest.raises(ValueError, match="--attention-cross softmax"):
            toy.model("--attention", kind, criterion=criterion)
        toy.model("--attention", kind, "--attention-cross", "softmax", criterion=criterion)


@pytest.mark.parametrize("kept", ["1", "0,1"])
def test_layers_can_be_left_out(kept):
    """fairseq's parser makes a list of them, and its model wants text."""
    flags = ("--encoder-layers-to-keep", kept, "--decoder-layers-to-keep", kept)
    model = toy.model(*flags)
    assert len(model.encoder.layers) == len(model.decoder.layers) == len(kept.split(","))


def test_a_criterion_from_elsewhere_that_says_nothing_is_let_through():
    toy.model("--output-transform", "entmax15", criterion="a_criterion_of_the_user")


def test_a_criterion_may_be_overridden_by_its_whole_configuration():
    """fairseq-validate does so with ``--model-overrides "{'criterion': {...}}"``."""
    toy.model("--output-transform", "softmax", criterion={"_name": "entmax_loss"})


@pytest.mark.parametrize("transform", ["softmax", "entmax15"])
def test_an_output_shares_no_embedding_of_another_width(transform):
    shared = ("--output-transform", transform, "--share-decoder-input-output-embed")
    with pytest.raises(ValueError, match="--decoder-output-dim 64"):
        toy.model(*shared, "--decoder-output-dim", 32)
    toy.model(*shared, "--decoder-output-dim", 64)


def test_adaptive_softmax_with_a_sparse_output_is_refused():
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff does not fit"):
        toy.model("--output-transform", "entmax15", "--adaptive-softmax-cutoff", "8,12")


@pytest.mark.parametrize(
    "flag, value",
    [("--output-algorithm", "sort"), ("--output-alpha", 3.0), ("--output-init", "xavier_uniform")],
)
def test_adaptive_softmax_takes_no_flag_of_the_output(flag, value):
    flags = ("--adaptive-softmax-cutoff", "8,12")
    with pytest.raises(ValueError, match=f"cutoff does not fit {flag} {value}; leave it out"):
        toy.model(flag, value, *flags, criterion="adaptive_loss")
    toy.model("--output-tau", "data", *flags, criterion="adaptive_loss")  # once the default
    toy.model(flag, value, *flags, criterion=None)  # that of an older checkpoint


@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_stock_search_over_a_sparse_model_is_refused(transform):
    model = toy.model("--output-transform", transform)
    refused = transform != "softmax"
    for task_name in ("translation", "translation_sparse"):
        for score_reference in (False, True):
            cfg = OmegaConf.structured(FairseqConfig)
            OmegaConf.set_struct(cfg, False)
            cfg.task = {"_name": task_name}
            cfg.generation.score_reference = score_reference
            if refused and task_name == "translation" and not score_reference:
                with pytest.raises(ValueError, match="use --task translation_sparse"):
                    model.prepare_for_inference_(cfg)
            else:
                model.prepare_for_inference_(cfg)


@pytest.mark.parametrize("name", ["output_alpha", "output_tau", "output_algorithm"])
@pytest.mark.parametrize("transform", ["entmax", "alpha_relu"])
def test_a_threshold_found_in_training_is_not_overridden(transform, name):
    """The checkpoint's tau would stay, in silence, whatever its alpha."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    cfg.task = {"_name": "translation_sparse"}
    cfg.common_eval.model_overrides = f"{{'{name}': 'newton'}}"
    model = toy.model("--output-transform", transform)
    if transform == "alpha_relu" and name != "output_algorithm":
        with pytest.raises(ValueError, match=f"--model-overrides {name}"):
            model.prepare_for_inference_(cfg)
    else:
        model.prepare_for_inference_(cfg)


def test_eval_bleu_under_a_stock_task_is_refused_at_the_start():
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    words = toy.dictionary()
    stock = TranslationTask(TranslationConfig(eval_bleu=True), words, words)
    toy.model(for_task=stock)
    with pytest.raises(ValueError, match=r"--eval-bleu.*use --task translation_sparse"):
        toy.model("--output-transform", "sparsemax", for_task=stock)


@pytest.mark.parametrize("arch", ["transformer_sparse_tiny", "lstm_sparse"])
def test_a_checkpoint_of_another_vocabulary_is_refused_by_name(arch):
    options = {"arch": arch, "criterion": "entmax_loss"}
    state = toy.model(**options, for_task=toy.task(20)).state_dict()
    model = toy.model(**options, for_task=toy.task(23))
    with pytest.raises(ValueError, match="encoder of the checkpoint.* 20 tokens.* has 23: give"):
        model.load_state_dict(state)
