"""Language models continue prompts of any probability, including 0."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary

import toy
from fairseq_sparse.generation.normalized_scores import NormalizedScores
from fairseq_sparse.tasks import LanguageModelingSparseConfig, LanguageModelingSparseTask

PAD, EOS = Dictionary().pad(), Dictionary().eos()
SEARCHES = {
    "beam": {"beam": 3},
    "sampling": {"beam": 3, "sampling": True},
    "siblings": {"beam": 3, "diversity_rate": 0.1},
    "groups": {"beam": 4, "diverse_beam_groups": 2},
}


def task(**options):
    return LanguageModelingSparseTask(LanguageModelingSparseConfig(**options), toy.dictionary())


def language_model(transform="entmax15", tau="1.0", scale=4.0):
    model = toy.language_model(
        output_transform=transform, output_tau=tau if transform == "alpha_relu" else "data"
    )
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(scale)
    return model.eval()


def generate(model, prompts, config=None, **options):
    """Return the n-best lists of prompts of any lengths, generated as in fairseq-interactive."""
    it = task(**(config or {}))
    options = {"max_len_b": 9, "nbest": options.get("beam", 1), **options}
    generator = it.build_generator([model], Namespace(**options))
    tensors = [torch.tensor([*prompt, EOS]) for prompt in prompts]
    dataset = it.build_dataset_for_inference(tensors, [len(each) for each in tensors])
    sample = dataset.collater([dataset[row] for row in range(len(prompts))])
    return it.inference_step(generator, [model], {"net_input": sample["net_input"]})


def distributions(model, tokens):
    """The probabilities at each step of a text, teacher-forced, ``[length, V]``."""
    if model.decoder.output_projection.transform.name == "alpha_relu":
        model = NormalizedScores(model)
    with torch.no_grad():
        output = model(torch.tensor([[EOS, *tokens[:-1]]]))
    return model.get_normalized_probs(output, log_probs=False)[0]


def impossible(model, before=()):
    """Return a token that has probability 0 after the tokens *before*."""
    p = distributions(model, [*before, EOS])[-1]
    return int((p[4:] == 0).nonzero()[0]) + 4


@pytest.mark.parametrize("transform", ["softmax", "entmax15", "alpha_relu"])
@pytest.mark.parametrize("search", SEARCHES)
def test_prompts_are_kept_and_scores_are_those_of_the_model(search, transform):
    """This includes prompts with a token of probability 0, and prompts with an EOS."""
    model = language_model(transform)
    prompts = [[5, 6], [7], [5, EOS, 8], [EOS, EOS, 9, 10], []]
    if transform != "softmax":
        prompts += [[impossible(model), 6], [5, impossible(model, [5]), EOS, 7]]
    torch.manual_seed(1)
    lists = generate(model, prompts, **SEARCHES[search])
    assert len(lists) == len(prompts)
    for prompt, hypotheses in zip(prompts, lists, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"].tolist()
            assert tokens[: len(prompt)] == prompt and len(tokens) > len(prompt)
            assert tokens[-1] == EOS and PAD not in tokens
            assert EOS not in tokens[len(prompt) : -1]
            p = distributions(model, tokens)
            scores = p.gather(1, torch.tensor(tokens)[:, None]).squeeze(1).log()
            scores[: len(prompt)].masked_fill_(scores[: len(prompt)].isneginf(), 0.0)
            if hypothesis.get("incomplete"):
                scores[-1] = 0.0
            assert scores.isfinite().all()
            if search in ("beam", "sampling"):  # the others subtract penalties
                torch.testing.assert_close(
                    hypothesis["positional_scores"], scores, rtol=1e-4, atol=1e-4
                )
    if search == "sampling":
        assert all(len(hypotheses) == 3 for hypotheses in lists)


@pytest.mark.parametrize("search", SEARCHES)
def test_another_language_model_reads_the_ends_of_sentences_too(search):
    model, other = language_model(), language_model("softmax").eval()
    generator = task().build_generator(
        [model],
        Namespace(max_len_b=9, nbest=3, **SEARCHES[search]),
        extra_gen_cls_kwargs={"lm_model": other, "lm_weight": 1.0},
    )
    prefixes = torch.tensor([[5, EOS, 8]])
    net_input = {"src_tokens": prefixes, "src_lengths": torch.tensor([3])}
    if search != "beam":
        with pytest.raises(ValueError, match="--lm-path"):
            generator.generate([model], {"net_input": net_input}, prefix_tokens=prefixes)
        return
    sample = {"net_input": net_input}
    for hypothesis in generator.generate([model], sample, prefix_tokens=prefixes)[0]:
        tokens = hypothesis["tokens"].tolist()
        both = [distributions(each, tokens).log() for each in (model, other)]
        scores = sum(both).gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
        found = hypothesis["positional_scores"]
        # the end may be forced by the limit of the length
        torch.testing.assert_close(found[3:-1], scores[3:-1], rtol=1e-4, atol=1e-4)


def test_a_prompt_may_repeat_an_ngram_that_a_text_may_not():
    model = language_model()
    prompt = [5, 6, 5, 6, 5, 6]
    for options in SEARCHES.values():
        for hypotheses in generate(model, [prompt], no_repeat_ngram_size=2, **options):
            tokens = hypotheses[0]["tokens"].tolist()
            assert tokens[:6] == prompt
            bigrams = list(zip(tokens[5:], tokens[6:], strict=False))
            assert len(set(bigrams)) == len(bigrams) and (5, 6) not in bigrams


@pytest.mark.parametrize("search", ["beam", "sampling"])
def test_a_prompt_that_leaves_no_room_is_refused(search):
    with pytest.raises(ValueError, match="a prompt has 6 tokens, but --max-len-a, --max-len-b"):
        generate(language_model(), [[5] * 6], max_len_b=5, **SEARCHES[search])


@pytest.mark.parametrize("search", SEARCHES)
def test_a_prompt_over_the_positions_of_the_model_can_only_be_made_shorter(search):
    with pytest.raises(ValueError, match="the model allow 11 with the prompt: give shorter"):
        generate(language_model(), [[7] * 13], max_len_b=30, **SEARCHES[search])


@pytest.mark.parametrize("search", SEARCHES)
def test_a_prompt_has_no_token_that_the_output_lacks(search):
    """An output can have a part of the dictionary: --output-dictionary-size."""
    with pytest.raises(ValueError, match="--output-dictionary-size"):
        generate(language_model(), [[7, 8], [7, 20]], **SEARCHES[search])


def test_samples_that_reach_the_length_limit_stay():
    model = language_model()
    with torch.no_grad():  # no text ends
        model.decoder.output_projection.weight[EOS] = 0
        bias = torch.zeros(20)
        bias[EOS] = -50
        model.decoder.output_projection.linear.bias = torch.nn.Parameter(bias)
    for hypotheses in generate(model, [[5], [6, 7]], beam=4, sampling=True):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            assert hypothesis["incomplete"] and len(hypothesis["tokens"]) == 10
            assert hypothesis["score"].isfinite() and hypothesis["positional_scores"][-1] == 0


def kept(p, options):
    """Return the distribution *p* as truncated by the options of sampling."""
    ordered, places = p.sort(descending=True)
    keeps = torch.ones(len(p), dtype=torch.bool)
    if "sampling_topk" in options:
        keeps[options["sampling_topk"] :] = False
    if "sampling_topp" in options:
        keeps = ordered.cumsum(0) - ordered < options["sampling_topp"]
    if "sampling_minp" in options:
        keeps = ordered >= options["sampling_minp"] * ordered[0]
    if "sampling_epsilon" in options:
        keeps = (ordered >= options["sampling_epsilon"]) | (ordered == ordered[0])
    left = torch.zeros_like(p)
    left[places[keeps]] = ordered[keeps]
    return left / left.sum()


@pytest.mark.each_value
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampling_topk": 3},
        {"sampling_topp": 0.6},
        {"sampling_minp": 0.4},
        {"sampling_epsilon": 0.15},
        {"sampling_epsilon": 0.99},
    ],
    ids=str,
)
@pytest.mark.parametrize("transform", ["softmax", "entmax15", "alpha_relu"])
def test_samples_have_the_frequencies_of_the_distribution(transform, options):
    model = language_model(transform, tau="0.2", scale=2.0)
    p = distributions(model, [5, EOS])[-1].double()
    p[PAD] = 0
    expected = kept(p / p.sum(), options)
    config = {
        name: x for name, x in options.items() if name not in ("sampling_topk", "sampling_topp")
    }
    args = {name: x for name, x in options.items() if name not in config}
    torch.manual_seed(2)
    lists = generate(model, [[5]] * 400, config, beam=10, sampling=True, max_len_b=2, **args)
    tokens = [hypothesis["tokens"][1].item() for hypotheses in lists for hypothesis in hypotheses]
    assert len(tokens) == 4000
    found = torch.bincount(torch.tensor(tokens), minlength=20).double() / 4000
    assert not found[expected == 0].any()
    # Six standard deviations of each count.
    assert ((found - expected).abs() <= 6 * (expected / 4000).sqrt() + 1e-9).all()
    assert transform == "softmax" or (p == 0).sum() > 1


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"sampling_minp": 0.1}, {}, "--sampling-minp: give --sampling as well"),
        ({"sampling_epsilon": 1.5}, {"sampling": True}, "--sampling-epsilon must lie in"),
        ({"sampling_minp": math.nan}, {"sampling": True}, "--sampling-minp must lie in"),
    ],
)
def test_thresholds_without_effect_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        generate(language_model(), [[5]], config, **options)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_text_is_not_too_short_beside_a_longer_prompt(search):
    torch.manual_seed(1)
    model = language_model("softmax")
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] *= 3  # texts end soon
    lists = generate(model, [[], [5, 6, 7]], min_len=4, **SEARCHES[search])
    for prompt, hypotheses in zip([[], [5, 6, 7]], lists, strict=True):
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"].tolist()
            assert tokens[: len(prompt)] == prompt and tokens.index(EOS) >= 4


@pytest.mark.parametrize("options", [{}, {"sampling_topk": 3}, {"sampling_topp": 0.5}], ids=str)
def test_a_prompt_may_be_as_improbable_as_it_likes(options):
    """At a low temperature its probability is 0 in fp32, so nothing could be drawn after it."""
    model = language_model("softmax", scale=20.0)
    logs = distributions(model, [EOS])[0].log()
    prompt = [4 + int(logs[4:].argmin())]
    assert logs[prompt] / 0.02 < -110
    for hypotheses in generate(model, [prompt], beam=3, sampling=True, temperature=0.02, **options):
        assert all(hypothesis["tokens"][0] == prompt[0] for hypothesis in hypotheses)
        assert all(hypothesis["score"].isfinite() for hypothesis in hypotheses)


def test_the_end_of_a_sentence_is_no_part_of_its_prompt():
    """fairseq-generate --prefix-size N passes N tokens: shorter sentences with EOS and padding."""
    model, it = language_model(), task(sample_break_mode="eos")
    generator = it.build_generator([model], Namespace(beam=3, nbest=3, max_len_b=9))
    sample = {"net_input": {"src_tokens": torch.tensor([[EOS, 5]])}}
    found = [
        it.inference_step(generator, [model], sample, prefix_tokens=torch.tensor([prefix]))
        for prefix in ([5], [5, EOS, PAD])
    ]
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert torch.equal(one["tokens"], other["tokens"])


def test_alignments_are_refused():
    with pytest.raises(ValueError, match="--print-alignment: a language model has no source"):
        generate(language_model(), [[5]], print_alignment="hard")
