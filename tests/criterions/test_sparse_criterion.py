import pytest
import torch
import torch.nn.functional as F
from fairseq.logging import metrics
from omegaconf import OmegaConf

import toy
from fairseq_sparse.criterions.sparse_criterion import (
    AlphaReLULossCriterion,
    EntmaxLossCriterion,
    SparseCriterion,
    SparseCriterionConfig,
)
from fairseq_sparse.modules import output_projection
from fairseq_sparse.modules.lm_measures import lm_measures
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

ENTMAX = ("softmax", "sparsemax", "entmax15", "entmax")


def build(transform, label_smoothing=0.0, sentence_avg=False, tau=0.5, fused=True):
    task = toy.task()
    kind = AlphaReLULossCriterion if transform == "alpha_relu" else EntmaxLossCriterion
    model = toy.model(
        *("--output-transform", transform, "--output-tau", tau, "--dropout", 0), for_task=task
    )
    return (
        kind(task, label_smoothing, not fused, sentence_avg),
        model,
        toy.batch(task.target_dictionary),
    )


@pytest.mark.parametrize("transform", (*ENTMAX, "alpha_relu"))
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_is_the_sum_over_target_tokens_of_the_model_s_own_loss(transform, label_smoothing):
    criterion, model, sample = build(transform, label_smoothing)
    loss, sample_size, log = criterion(model.eval(), sample)
    logits, target = model(**sample["net_input"])[0], sample["target"]
    real = target != 1
    expected = model.decoder.output_projection.transform.loss(
        logits[real], target[real], label_smoothing=label_smoothing, reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
    assert sample_size == log["ntokens"] == int(real.sum())
    each = criterion(model, sample, reduce=False)[0]
    assert each.shape == (target.numel(),) and torch.isclose(each.sum(), loss)


@pytest.mark.pairwise
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("transform", "tau"),
    [*((name, "data") for name in ENTMAX), ("alpha_relu", "data"), ("alpha_relu", 0.5)],
)
@pytest.mark.parametrize("flags", [(), ("--share-all-embeddings",)])
def test_the_fused_loss_is_that_of_the_logits(transform, label_smoothing, tau, flags):
    """The loss, all gradients and the logged values agree, also in the step that finds tau."""
    results = []
    for fused in (True, False):
        criterion, _, sample = build(transform, label_smoothing, fused=fused)
        model = toy.model(
            *("--output-transform", transform, "--output-tau", tau, "--dropout", 0, *flags),
            for_task=criterion.task,
        )
        loss, size, log = criterion(model.train(), sample)
        loss.backward()
        # fairseq 0.12.2 has parameters that no model uses.
        gradients = {n: x.grad for n, x in model.named_parameters() if x.grad is not None}
        results.append((loss, size, log, gradients))
    torch.testing.assert_close(*results)
    assert results[0][3]


@pytest.mark.parametrize("transform", ["entmax15", "alpha_relu"])
def test_the_fused_loss_never_asks_the_model_for_logits(transform, monkeypatch):
    criterion, model, sample = build(transform)
    projection = model.decoder.output_projection
    given = []
    monkeypatch.setattr(projection.transform, "loss", lambda *_, **__: given.append("loss"))
    criterion(model.train(), sample)[0].backward()
    assert not given
    logits = model(**sample["net_input"])[0]  # afterwards the model gives logits again
    assert logits.shape == (*sample["target"].shape, len(criterion.task.target_dictionary))


def test_a_failing_step_leaves_a_model_that_gives_logits():
    criterion, model, sample = build("entmax15")
    wrong = {**sample, "target": sample["target"] + 10_000}
    with pytest.raises((IndexError, RuntimeError)):
        criterion(model.train(), wrong)
    assert model(**sample["net_input"])[0].dim() == 3


def test_softmax_is_fairseq_s_cross_entropy():
    criterion, model, sample = build("softmax")
    loss = criterion(model.eval(), sample)[0]
    logits = model(**sample["net_input"])[0].flatten(0, 1)
    expected = F.cross_entropy(logits, sample["target"].flatten(), ignore_index=1, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_sentence_avg_counts_sentences():
    criterion, model, sample = build("entmax15", sentence_avg=True)
    assert criterion(model, sample)[1] == 3


@pytest.mark.parametrize("transform", (*ENTMAX, "alpha_relu"))
def test_logged_values_are_means_over_all_tokens_of_all_batches(transform):
    criterion, model, _ = build(transform)
    criterion.epsilon = 0.01
    words = criterion.task.target_dictionary
    samples = [toy.batch(words, seed=1), toy.batch(words, sizes=((3, 2), (5, 9)), seed=2)]
    logs, logits, targets, loss = [], [], [], 0.0
    for sample in samples:
        value, _, log = criterion(model.eval(), sample)
        real = sample["target"] != 1
        logits.append(model(**sample["net_input"])[0][real])
        targets.append(sample["target"][real])
        loss += value.item()
        logs.append(log)
    logits, target = torch.cat(logits), torch.cat(targets)
    p = model.decoder.output_projection.transform.probs(logits)
    with metrics.aggregate() as logged:
        for log in logs:  # as fairseq-train does, batch by batch
            criterion.reduce_metrics([log])
    values = logged.get_smoothed_values()
    count = len(target)
    assert values["loss"] == pytest.approx(loss / count, abs=1e-4)
    assert values["accuracy"] == pytest.approx(
        100 * (logits.argmax(-1) == target).double().mean().item(), abs=0.01
    )
    assert values["nonzeros"] == pytest.approx((p > 0).sum().item() / count, abs=0.01)
    gold = p.gather(1, target[:, None])
    assert values["gold_zero"] == pytest.approx(100 * (gold == 0).sum().item() / count, abs=0.01)
    assert values["prob_sum"] == pytest.approx(p.sum().item() / count, abs=1e-4)
    assert values["logit_norm"] == pytest.approx(logits.norm(dim=1).mean().item(), abs=0.01)
    assert ("tau" in values) == (transform != "softmax")
    measures = lm_measures(p, target, criterion.epsilon)
    for name in ("sparsemax_score", "js_divergence"):
        assert values[name] == pytest.approx(measures[name].mean().item(), abs=1e-4)
    eps_ppl = measures["eps_nll"].mean().exp().item()
    assert values["eps_ppl"] == pytest.approx(eps_ppl, abs=0.01)
    assert transform == "softmax" or values["ppl"] == values["eps_ppl"]
    # As in fairseq across workers: sum first, then reduce.
    summed = {key: sum(log[key] for log in logs) for key in logs[0]}
    with metrics.aggregate() as again:
        criterion.reduce_metrics([summed])
    assert again.get_smoothed_values() == pytest.approx(values, abs=1e-3)
    assert criterion.logging_outputs_can_be_summed()


@pytest.mark.parametrize("name", (*ENTMAX, "alpha_relu"))
def test_statistics_in_half_precision_are_those_of_the_same_logits_in_fp32(name):
    transform = OUTPUT_TRANSFORMS[name](name, tau=0.5)
    logits, target = 30 * torch.randn(50, 30).half(), torch.randint(30, (50,))
    found = transform.statistics(logits, target, 1, epsilon=0.01)
    torch.testing.assert_close(found, transform.statistics(logits.float(), target, 1, epsilon=0.01))


def test_accuracy_is_that_of_the_logits_where_all_weights_are_0():
    transform = OUTPUT_TRANSFORMS["alpha_relu"]("alpha_relu", tau=100.0)
    logits = torch.randn(50, 30)
    found = transform.statistics(logits, logits.argmax(-1), ignore_index=-1)
    assert found["nonzeros"] == 0 and found["correct"] == 50


def test_training_statistics_look_at_few_tokens_of_a_large_batch(monkeypatch):
    monkeypatch.setattr(output_projection, "TRAINING_STATISTICS_TOKENS", 4)
    criterion, model, sample = build("entmax15")
    assert 1 <= criterion(model.train(), sample)[2]["statistics_tokens"] <= 4
    assert criterion(model.eval(), sample)[2]["statistics_tokens"] == sample["ntokens"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_training_statistics_do_not_depend_on_the_default_dtype(dtype):
    target = torch.zeros(4096)
    expected = output_projection._some_rows(target)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(output_projection._some_rows(target), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    assert expected[-1] == 4095


def test_training_statistics_look_at_all_positions_of_a_sentence(monkeypatch):
    """Also where the step between the sampled tokens would be the length of a sentence."""
    monkeypatch.setattr(output_projection, "TRAINING_STATISTICS_TOKENS", 8)
    criterion, model, _ = build("entmax15")
    sample = toy.batch(criterion.task.target_dictionary, sizes=((3, 7),) * 8)
    seen = []
    transform = model.decoder.output_projection.transform
    monkeypatch.setattr(transform, "statistics", lambda z, target, *_: seen.append(target) or {})
    criterion(model.train(), sample)
    eos = criterion.task.target_dictionary.eos()
    assert len(seen[0]) == 8 and (seen[0] == eos).sum() == 1  # eos is the last of 8 positions


def test_tau_is_found_by_the_first_training_step_and_kept():
    criterion, model, sample = build("alpha_relu", tau="data")
    transform = model.decoder.output_projection.transform
    with pytest.raises(RuntimeError, match="tau of alpha_relu is not set"):
        criterion(model.eval(), sample)
    criterion(model.train(), sample)
    found = transform.tau.clone()
    assert torch.isfinite(found)
    criterion(model, toy.batch(criterion.task.target_dictionary, seed=9))
    assert torch.equal(transform.tau, found)


@pytest.mark.parametrize("transform", (*ENTMAX, "alpha_relu"))
def test_settings_of_a_model_that_does_not_fit_are_refused_under_any_task(transform):
    """fairseq-validate has such settings if --model-overrides names another criterion."""
    run = OmegaConf.create({"criterion": OmegaConf.structured(SparseCriterionConfig)})
    run.criterion.sentence_avg = False
    run.model = {"_name": "transformer_lm_sparse", "output_transform": transform}
    kinds = (AlphaReLULossCriterion, EntmaxLossCriterion)
    right, wrong = kinds if transform == "alpha_relu" else kinds[::-1]
    assert isinstance(right.build_criterion(run.criterion, toy.task()), right)
    with pytest.raises(ValueError, match=f"does not fit --output-transform {transform}: .* use"):
        wrong.build_criterion(run.criterion, toy.task())
    run.model = {"_name": "a_model_of_the_user"}
    with pytest.raises(ValueError, match="--arch a_model_of_the_user is none of them: use"):
        right.build_criterion(run.criterion, toy.task())


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0])
def test_label_smoothing_out_of_range_is_refused(label_smoothing):
    with pytest.raises(ValueError, match="--label-smoothing must lie in"):
        SparseCriterion(toy.task(), label_smoothing, False, False)


@pytest.mark.parametrize("transform", (*ENTMAX, "alpha_relu"))
def test_sentence_accuracy_is_the_share_that_greedy_search_gets_right(transform):
    criterion, model, sample = build(transform)
    model.eval()
    with torch.no_grad():
        target = sample["target"]
        logits = model(**sample["net_input"])[0]
        # Make the first sentence right, the second right but for its last token.
        best = logits.argmax(-1)
        real = target != 1
        target[0] = torch.where(real[0], best[0], target[0])
        last = int(real[1].sum()) - 1
        target[1, :last] = best[1, :last]
        target[1, last] = (best[1, last] + 1) % logits.size(-1)
        assert (target[2][real[2]] != best[2][real[2]]).any()
        log = criterion(model, sample)[2]
        assert log["statistics_correct_sentences"] == 1
        # Rows of padding alone are no sentences.
        whole = {"target": target, "ntokens": sample["ntokens"], "net_input": sample["net_input"]}
        inputs = {name: torch.cat([x, x[:1]]) for name, x in sample["net_input"].items()}
        padded = torch.cat([target, torch.ones_like(target[:1])])
        longer = criterion(model, {**whole, "target": padded, "net_input": inputs})[2]
        for name in ("sentences", "correct_sentences"):
            name = f"statistics_{name}"
            assert longer[name] == log[name]
        other = criterion(model, toy.batch(criterion.task.target_dictionary, ((3, 4),)))[2]
        with metrics.aggregate() as values:
            for logs in ([log, log], [{**other, "statistics_correct_sentences": 1}]):
                criterion.reduce_metrics(logs)
        assert values["sentence_accuracy"].avg == pytest.approx(100 * 3 / 7)
    assert "statistics_correct_sentences" not in criterion(model.train(), sample)[2]
