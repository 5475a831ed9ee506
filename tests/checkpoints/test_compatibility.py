"""Checkpoints from which training starts: which ones fit, and refusals that name the reason."""

import logging
from argparse import Namespace
from contextlib import contextmanager

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema import build_ema
from omegaconf import OmegaConf

import toy
from fairseq_sparse.checkpoints.compatibility import (
    check_exponential_average,
    check_first_checkpoint,
)
from fairseq_sparse.criterions.sparse_criterion import (
    EntmaxLossCriterion,
    SparseCriterionConfig,
)

ENTMAX = {"output_transform": "entmax15"}
RELU = {"output_transform": "alpha_relu", "output_tau": 0.7}


def flags(options):
    return [x for name, value in options.items() for x in ("--" + name.replace("_", "-"), value)]


def save(folder, options, arch="transformer_sparse_tiny", name="checkpoint_last.pt"):
    """Write the checkpoint of a new model with these options, and return its path."""
    model = toy.model(*flags(options), arch=arch, seed=7, criterion="")
    cfg = {"model": Namespace(arch=arch, **options)}
    torch.save({"cfg": cfg, "model": model.state_dict(), "extra_state": {}}, folder / name)
    return folder / name


def begin(folder, options, arch="transformer_sparse_tiny", **start):
    """Build a model and load the parameters it begins with, as fairseq-train does."""
    model = toy.model(*flags(options), arch=arch, criterion="")
    settings = {"save_dir": str(folder), "restore_file": "checkpoint_last.pt", **start}
    check_first_checkpoint(Namespace(arch=arch, **options, **settings), model)
    if "finetune_from_model" in start:
        state = torch.load(start["finetune_from_model"], weights_only=False)
        model.load_state_dict(state["model"], strict=True)
    return model


@pytest.mark.parametrize("theirs", [{}, ENTMAX, RELU, {"attention": "sparsemax"}])
@pytest.mark.parametrize(
    "ours",
    [{}, ENTMAX, RELU, {**RELU, "output_alpha": 1.7}, {"attention_dec": "entmax15"}],
)
def test_a_run_is_resumed_with_the_flags_of_its_checkpoint_only(theirs, ours, tmp_path):
    path = save(tmp_path, theirs)
    if theirs == ours:
        begin(tmp_path, ours)
        return
    with pytest.raises(ValueError, match="choose another --save-dir") as refusal:
        begin(tmp_path, ours)
    message = str(refusal.value)
    assert str(path) in message and f"--finetune-from-model {path}" in message
    for name, value in ours.items() - theirs.items() - {("output_tau", 0.7)}:
        assert f"--{name.replace('_', '-')} {value}" in message


@pytest.mark.parametrize("theirs", [{}, {"output_topk": 0}, {"output_topk": 8}], ids=str)
def test_a_run_is_resumed_with_any_algorithm(theirs, tmp_path):
    """Older checkpoints have a topk that truncated."""
    save(tmp_path, {**ENTMAX, **theirs})
    begin(tmp_path, {**ENTMAX, "output_algorithm": "partial", "output_topk": 100})


def test_a_run_that_continues_another_has_its_flags(tmp_path):
    """fairseq-fixed resumes from --continue-once where the run has no checkpoint of its own."""
    path = str(save(tmp_path, ENTMAX, name="old.pt"))
    begin(tmp_path / "new", ENTMAX, continue_once=path)
    with pytest.raises(ValueError, match="choose another --save-dir"):
        begin(tmp_path / "new", {"output_transform": "sparsemax"}, continue_once=path)
    begin(tmp_path / "new", {}, continue_once=path, reset_optimizer=True)


def test_the_same_attention_can_be_asked_for_in_two_ways(tmp_path):
    save(tmp_path, {"attention": "entmax15"})
    places = {f"attention_{place}": "entmax15" for place in ("enc", "dec", "cross")}
    begin(tmp_path, places)
    begin(tmp_path, {"attention": "softmax", **places})


def test_stock_s_run_is_not_resumed_with_another_output(tmp_path):
    save(tmp_path, {}, arch="transformer_tiny")
    begin(tmp_path, {})
    with pytest.raises(ValueError, match="with --output-transform softmax, but this run"):
        begin(tmp_path, ENTMAX)


@pytest.mark.parametrize("transform", ["softmax", "sparsemax", "entmax15", "entmax"])
def test_from_alpha_relu_to_another_output(transform, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = save(tmp_path, RELU, name="relu.pt")
    model = begin(tmp_path, {"output_transform": transform}, finetune_from_model=str(path))
    assert "tau of alpha_relu (0.700000) in the checkpoint is left out" in caplog.text
    assert f"--output-transform {transform} has none" in caplog.text
    theirs = torch.load(path, weights_only=False)["model"]
    assert theirs.keys() - model.state_dict().keys() == {"decoder.output_projection.tau"}
    for name, parameter in model.decoder.layers.state_dict().items():
        assert torch.equal(parameter, theirs[f"decoder.layers.{name}"])


def test_from_alpha_relu_to_another_output_of_an_lstm(tmp_path):
    path = save(tmp_path, RELU, arch="lstm_sparse", name="relu.pt")
    begin(tmp_path, ENTMAX, arch="lstm_sparse", finetune_from_model=str(path))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_average_must_be_there_to_go_on_with_it(is_resumed, tmp_path):
    """fairseq fails with KeyError: 'model' where it would begin one from the checkpoint."""
    path = save(tmp_path, ENTMAX)
    folder, start = (tmp_path, {}) if is_resumed else ("", {"finetune_from_model": str(path)})
    begin(folder, ENTMAX, **start)
    with pytest.raises(ValueError, match="--store-ema: .*checkpoint_last.pt"):
        begin(folder, ENTMAX, store_ema=True, **start)
    state = torch.load(path, weights_only=False)
    torch.save({**state, "extra_state": {"ema": state["model"]}}, path)
    begin(folder, ENTMAX, store_ema=True, **start)


@contextmanager
def refusal_by_both(model, path, message):
    """Check that the block refuses the checkpoint, and so does the model when it is loaded."""
    with pytest.raises(ValueError, match=message) as early:
        yield
    state = torch.load(path, weights_only=False)
    with pytest.raises(ValueError, match=message) as late:
        model.load_state_dict(state["model"], strict=True)
    assert str(early.value) == f"{path}: {late.value}"


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"attention": "rela_g"}, ("self_attn.norm.gate", "encoder_attn.norm.weight", "rela_g")),
        ({"attention_cross": "rela_i"}, ("decoder.layers.*.encoder_attn.norm.weight", "rela_i")),
        (
            {"attention": "entmax", "attention_alpha_learnable": True},
            ("self_attn.alpha_logit", "--attention-alpha-learnable"),
        ),
        (
            {"attention": "entmax15", "attention_scale_queries": True},
            ("self_attn.query_scale.beta.weight", "--attention-scale-queries"),
        ),
    ],
)
def test_parameters_that_an_attention_adds_are_named(ours, words, tmp_path):
    path = save(tmp_path, {}, arch="transformer_tiny", name="stock.pt")
    given = [x for x in flags(ours) if x is not True]
    with refusal_by_both(toy.model(*given), path, "the checkpoint has no") as _:
        settings = Namespace(**ours, save_dir=str(tmp_path), finetune_from_model=str(path))
        check_first_checkpoint(settings, toy.model(*given))
    with pytest.raises(ValueError) as refusal:
        toy.model(*given).load_state_dict(torch.load(path, weights_only=False)["model"])
    assert all(word in str(refusal.value) for word in words)


def test_no_attention_is_advised_that_the_checkpoint_does_not_fit(tmp_path):
    """A gate without a norm: neither rela_g nor the kinds without parameters can load it."""
    path = save(tmp_path, {"attention": "softmax_gated"}, name="gated.pt")
    ours = toy.model("--attention", "rela_g")
    with refusal_by_both(ours, path, r"has no .*norm\.weight.* It has .*norm\.gate: give") as _:
        settings = Namespace(
            attention="rela_g", save_dir=str(tmp_path), finetune_from_model=str(path)
        )
        check_first_checkpoint(settings, ours)
    with pytest.raises(ValueError) as refusal:
        ours.load_state_dict(torch.load(path, weights_only=False)["model"])
    assert "Its parameters fit" not in str(refusal.value)


def test_parameters_of_another_attention_are_named(tmp_path):
    path = save(tmp_path, {"attention": "rela_g"}, name="rela.pt")
    with refusal_by_both(toy.model(), path, r"has decoder\.layers\.\*\.encoder_attn\.norm\.gate"):
        begin(tmp_path, {}, finetune_from_model=str(path))


@pytest.mark.parametrize("estimator", ["weights", "formula"])
def test_tau_is_not_estimated_from_trained_weights(estimator, tmp_path):
    """Estimates hold for initial weights only; tau may be measured, given, or in the checkpoint."""
    path = save(tmp_path, {}, arch="transformer_tiny", name="stock.pt")
    options = {"output_transform": "alpha_relu", "output_tau": estimator}
    with refusal_by_both(toy.model(*flags(options)), path, f"--output-tau {estimator} holds for"):
        begin(tmp_path, options, finetune_from_model=str(path))
    for tau in ("data", 1.4):
        begin(tmp_path, {**options, "output_tau": tau}, finetune_from_model=str(path))
    known = save(tmp_path, RELU, name="relu.pt")
    model = begin(tmp_path, options, finetune_from_model=str(known))
    assert model.decoder.output_projection.transform.tau == pytest.approx(0.7)
    with pytest.raises(ValueError, match="relu.pt has the tau of --output-alpha 1.5"):
        options_of_another = {**options, "output_alpha": 1.2, "output_tau": "data"}
        begin(tmp_path, options_of_another, finetune_from_model=str(known))
    begin(tmp_path / "new", options)


def test_a_damaged_checkpoint_is_left_to_fairseq(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"nothing")
    begin(tmp_path, ENTMAX)


def test_an_alpha_that_is_no_number_is_named(tmp_path):
    path = save(tmp_path, ENTMAX)
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"] = Namespace(output_transform="entmax", output_alpha=["x"])
    torch.save(state, path)
    with pytest.raises(ValueError, match="--output-transform entmax"):
        begin(tmp_path, ENTMAX)


@pytest.mark.parametrize("shared", [[], ["--share-decoder-input-output-embed"]])
@pytest.mark.parametrize("ema_fp32", [False, True])
@pytest.mark.parametrize("fp16", [False, True])
def test_an_average_of_shared_parameters_is_right_or_refused(shared, ema_fp32, fp16):
    model = toy.model(*shared)
    config = EMAConfig(store_ema=True, ema_fp32=ema_fp32, ema_decay=0.5)
    run = OmegaConf.create({"ema": OmegaConf.structured(config), "common": {"fp16": fp16}})
    run.model = {}
    try:
        check_exponential_average(run.model, model)
        refused = False
    except ValueError:
        refused = True
    model = model.half() if fp16 else model
    average = build_ema(model, run.ema, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.ones_like(parameter) * 3)
        for parameter in average.model.parameters():
            parameter.copy_(torch.ones_like(parameter))
        if ema_fp32:
            average.build_fp32_params()
    average.step(model, 1)
    found = average.model.state_dict()["decoder.embed_tokens.weight"]
    assert bool((found == 2).all()) != refused


def test_another_file_to_restore_is_looked_at(tmp_path):
    path = save(tmp_path, ENTMAX, name="other.pt")
    with pytest.raises(ValueError, match="choose another --save-dir"):
        begin(tmp_path, {}, restore_file=str(path))
    begin(tmp_path, {}, restore_file=str(path), reset_optimizer=True)
    save(tmp_path, ENTMAX)
    begin(tmp_path, {}, reset_optimizer=True)


@pytest.mark.parametrize(
    ("arch", "remedy"),
    [
        ("transformer", "--arch transformer_sparse with"),
        ("transformer_iwslt_de_en", "--arch transformer_sparse_iwslt_de_en with"),
        ("lstm", "--arch lstm_sparse with"),
        ("transformer_lm", "--arch transformer_lm_sparse with"),
        ("fconv", "--arch transformer_sparse with"),
        ("transformer_sparse", None),
    ],
)
@pytest.mark.parametrize("key", ["arch", "_name"])
def test_a_criterion_for_a_stock_architecture_is_refused(arch, remedy, key):
    """Built as by fairseq-train, under any task, with the settings of the model beside its own."""
    run = OmegaConf.create({"criterion": OmegaConf.structured(SparseCriterionConfig)})
    run.criterion.sentence_avg = False
    run.model = {key: arch, "output_transform": "entmax15"}
    if remedy is None:
        EntmaxLossCriterion.build_criterion(run.criterion, toy.task())
        return
    with pytest.raises(
        ValueError, match=f"--criterion entmax_loss does not fit --arch {arch}"
    ) as e:
        EntmaxLossCriterion.build_criterion(run.criterion, toy.task())
    assert remedy in str(e.value)
