import pytest
import torch
from fairseq.logging import metrics

from toy import batch, model, task

LEARNED = ("--attention", "entmax", "--attention-alpha-learnable")


def logged(*flags, train=True, change=None):
    words = task()
    transformer = model(*flags, for_task=words)
    if change is not None:
        change(transformer)
    transformer.train(train)
    with metrics.aggregate(new_root=True) as log:
        transformer(**batch(words.source_dictionary)["net_input"])
    return log.get_smoothed_values()


def test_every_place_logs_its_mean_and_range():
    values = logged(*LEARNED, "--attention-alpha", "1.3")
    assert set(values) == {
        f"alpha_{place}{end}" for place in ("enc", "dec", "cross") for end in ("", "_min", "_max")
    }
    assert all(value == pytest.approx(1.3, abs=1e-4) for value in values.values())


def test_the_present_alpha_of_all_layers_and_heads_is_logged():
    def change(transformer):
        logit = transformer.decoder.layers[1].encoder_attn.alpha_logit
        torch.nn.init.constant_(logit, 100.0)
        torch.nn.init.constant_(logit[:1], -100.0)

    values = logged(*LEARNED, change=change)
    assert (values["alpha_enc_min"], values["alpha_enc_max"]) == (1.5, 1.5)
    assert (values["alpha_cross_min"], values["alpha_cross_max"]) == (1.01, 2.0)
    heads = 2 * 2  # of two layers, two of them changed
    assert values["alpha_cross"] == pytest.approx((2 * 1.5 + 1.01 + 2) / heads, abs=1e-4)


def test_only_learned_alphas_are_logged_and_only_in_training():
    assert logged("--attention", "entmax", "--attention-alpha", "1.3") == {}
    assert logged(*LEARNED, train=False) == {}
    values = logged("--attention-cross", "entmax", "--attention-alpha-learnable")
    assert set(values) == {"alpha_cross", "alpha_cross_min", "alpha_cross_max"}
