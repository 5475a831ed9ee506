"""fairseq-generate with each of its options: nothing is lost, and every score is the model's."""

import json
import math
import shutil

import pytest
import torch
from fairseq_cli import interactive

import toy
from commands import output_flags, train
from fairseq_sparse.models.transformer_sparse import TransformerSparseModel
from printed_translations import Scorer, agree, run_here

SENTENCES = 30
MAX_LEN = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def models(data, tmp_path_factory):
    """Train a sparse and a softmax model; return their checkpoints, and those of the ensemble."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for transform in ("entmax15", "softmax"):
        flags = ("--criterion", "entmax_loss", "--output-transform", transform)
        limits = ("--max-epoch", "12", "--lr", "0.005", "--no-epoch-checkpoints")
        train(data, folder / transform, *flags, *limits, "--disable-validation")
        paths[transform] = folder / transform / "checkpoint_last.pt"
    return {
        "sparse": [paths["entmax15"]],
        "softmax": [paths["softmax"]],
        "ensemble": [paths["entmax15"], paths["softmax"]],
    }


@pytest.fixture(scope="module", params=["transformer_lm", "transformer_lm_sparse"])
def language_model(request, data, tmp_path_factory):
    """Train a language model of the target language for two updates."""
    folder = tmp_path_factory.mktemp("lm")
    shutil.copy(data / "dict.en.txt", data / "dict.txt")  # where fairseq looks for it
    text = [f"--{split}pref={data.parent / split}.en" for split in ("train", "valid")]
    dictionary = ("--srcdict", data / "dict.txt")
    toy.run("fairseq_cli.preprocess", "--only-source", *text, *dictionary, "--destdir", folder)
    size = ("--decoder-layers", "1", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2")
    if request.param == "transformer_lm_sparse":
        size += output_flags("entmax15")
    toy.run(
        "fairseq_cli.train",
        *(folder, "--task", "language_modeling", "--arch", request.param, *size, "--cpu"),
        *("--user-dir", toy.USER_DIR),
        *("--tokens-per-sample", "20", "--max-tokens", "200"),
        *("--optimizer", "adam", "--lr", "0.1", "--max-update", "2", "--save-dir", folder),
        "--disable-validation",
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture
def run(data, models, caplog):
    """Run fairseq-generate (or another command)."""

    def run(model, *flags, data=data, **options):
        return run_here(caplog, data, models[model], "--max-len-b", MAX_LEN, *flags, **options)

    return run


@pytest.fixture(scope="module")
def outputs():
    return {}


@pytest.fixture
def once(run, outputs):
    """Run fairseq-generate as ``run`` does, but only once for the same arguments."""

    def once(*arguments):
        if arguments not in outputs:
            outputs[arguments] = run(*arguments)
        return outputs[arguments]

    return once


@pytest.fixture(scope="module")
def scorers(data, models):
    """Return a scorer for each entry of ``models``."""
    return {name: Scorer(data, paths) for name, paths in models.items()}


def value(flags, name, default):
    """Return the number given with a flag, or the default."""
    return type(default)(flags[flags.index(name) + 1]) if name in flags else default


def assert_scores(actual, expected, what):
    actual = torch.as_tensor(actual)
    assert actual.isfinite().all(), what
    assert agree(actual, expected).all(), f"{what}: {actual} {expected}"


def assert_exact(output, scorer, flags=(), repeats=False, allowed=None):
    """Check what holds under every option: no sentence is lost, and every score is the model's.

    Args:
        allowed: whether a hypothesis may end there, given the sentence number and its words

    Returns:
        sentence number -> its complete hypotheses.
    """
    nbest, beam = value(flags, "--nbest", 1), value(flags, "--beam", 5)
    forced = value(flags, "--prefix-size", 0)
    options = {
        "temperature": value(flags, "--temperature", 1.0),
        "unkpen": value(flags, "--unkpen", 0.0),
        "lm_weight": value(flags, "--lm-weight", 0.0),
    }
    power = 0.0 if "--unnormalized" in flags else value(flags, "--lenpen", 1.0)
    found = output.hypotheses()
    assert sorted(found) == list(range(SENTENCES))
    pairs = [(number, hypothesis) for number, best in found.items() for hypothesis in best]
    numbers, hypotheses = zip(*pairs, strict=True)
    expected = scorer.positional(
        numbers, [hypothesis.words for hypothesis in hypotheses], **options
    )
    complete = {number: [] for number in found}
    for (number, hypothesis), scores in zip(pairs, expected, strict=True):
        what = f"sentence {number}, {' '.join(hypothesis.words)}"
        scores[:forced].masked_fill_(scores[:forced].isneginf(), 0.0)
        assert len(hypothesis.positional) == len(scores) <= value(flags, "--max-len-b", MAX_LEN) + 1
        assert_scores(hypothesis.positional[:-1], scores[:-1], what)
        end = hypothesis.positional[-1]
        may_end = len(hypothesis.words) >= value(flags, "--min-len", 1)
        may_end = may_end and (allowed is None or allowed(number, hypothesis.words))
        if may_end and agree(end, scores[-1]):
            complete[number].append(hypothesis)
        else:  # incomplete: its EOS costs nothing
            assert end == 0 and len(found[number]) == 1, what
        length = len(hypothesis.positional) ** power
        assert hypothesis.score == pytest.approx(sum(hypothesis.positional) / length, abs=1e-3)
    assert output.incomplete() == sum(not best for best in complete.values())
    for best in found.values():
        scores = [hypothesis.score for hypothesis in best]
        assert len(best) <= min(nbest, beam) and scores == sorted(scores, reverse=True)
        assert repeats or len({hypothesis.words for hypothesis in best}) == len(best)
    return complete


OPTIONS = """
--beam 1 --no-repeat-ngram-size 2
--beam 20 --nbest 20 --temperature 0.1
--max-len-a 0 --max-len-b 3 --beam 2
--min-len 0 --nbest 5 --unkpen -9
--min-len 5 --unnormalized --nbest 5
--prefix-size 3 --nbest 5
--sampling --nbest 5 --temperature 0.3
--sampling --sampling-topk 3 --nbest 5
--sampling --sampling-topp 0.6 --nbest 5
""".strip().splitlines()
# Flags that are also tried with an ensemble; the tests of the search try more.
OF_AN_ENSEMBLE = ("--beam 20 --nbest 20 --temperature 0.1", "--lenpen 0.6 --nbest 5")


@pytest.mark.parametrize(
    ("model", "option"),
    [("sparse", option) for option in OPTIONS] + [("ensemble", x) for x in OF_AN_ENSEMBLE],
)
def test_scores_are_the_models(option, model, run, scorers):
    flags, scorer = option.split(), scorers[model]
    assert_exact(run(model, *flags), scorer, flags, repeats="--sampling" in flags)


SEARCHES = ("--beam 5", "--beam 4 --diverse-beam-groups 2", "--exact-search --exact-search-nodes 9")


@pytest.mark.parametrize("search", [*SEARCHES, "--sampling --beam 4"])
def test_a_prefix_is_kept_whatever_its_probability(search, run, scorers, tmp_path):
    flags = ["--prefix-size", 3, "--temperature", 0.2, "--nbest", 4, *search.split()]
    output = run("sparse", *flags, "--search-report", tmp_path / "report")
    references = [scorers["sparse"].reference(number) for number in range(SENTENCES)]
    for number, hypotheses in output.hypotheses().items():
        for hypothesis in hypotheses:
            assert hypothesis.words[:3] == tuple(references[number][:3])
    log_probs = scorers["sparse"].positional(range(SENTENCES), references, temperature=0.2)
    expected = {n for n, row in enumerate(log_probs) if row[:3].isneginf().any()}
    lines = map(json.loads, (tmp_path / "report").read_text().splitlines())
    marked = {line["id"] for line in lines if line["impossible_prefix"]}
    assert marked == expected and 0 < len(marked) < SENTENCES


def test_the_hub_interface_keeps_a_prefix(models, data, scorers):
    path = models["sparse"][0]
    hub = TransformerSparseModel.from_pretrained(str(path.parent), path.name, str(data))
    source, words = scorers["sparse"].source(0), scorers["sparse"].encode(["<unk>"] * 3)
    given = {"prefix_tokens": words[None, :3]}
    for hypothesis in hub.generate([source], beam=3, inference_step_args=given)[0]:
        assert hypothesis["tokens"][:3].equal(words[:3])
        assert hypothesis["impossible_prefix"] and hypothesis["score"].isfinite()


@pytest.mark.slow_except("transformer_lm_sparse-sparse")
@pytest.mark.parametrize("model", ["sparse", "ensemble"])
def test_language_model(model, run, data, models, language_model):
    flags = ["--lm-path", language_model, "--lm-weight", "0.7", "--nbest", "5", "--lenpen", "0.6"]
    assert_exact(run(model, *flags), Scorer(data, models[model], language_model), flags)


@pytest.mark.each_value
@pytest.mark.parametrize("model", ["sparse", "softmax", "ensemble"])
def test_a_language_model_of_weight_0_changes_nothing(model, run, once, language_model):
    flags = ["--beam", "5", "--nbest", "5", "--lenpen", "0.6"]
    plain = once(model, *flags)
    weighted = run(model, *flags, "--lm-path", language_model, "--lm-weight", "0")
    assert weighted.hypotheses() == plain.hypotheses()
    assert "--lm-path has no effect, because --lm-weight is 0" in weighted.log


def test_a_language_model_can_count_against_a_hypothesis_unless_it_has_zeros(
    run, data, models, language_model, request
):
    flags = ["--lm-path", language_model, "--lm-weight", "-0.3", "--nbest", "5"]
    if request.node.callspec.params["language_model"] == "transformer_lm":
        assert_exact(run("sparse", *flags), Scorer(data, models["sparse"], language_model), flags)
        return
    with pytest.raises(ValueError, match="--lm-weight must not be negative, got -0.3"):
        run("sparse", *flags)


def test_an_infinite_penalty_of_unknown_words_forbids_them(run, scorers):
    flags = ["--unkpen", "inf", "--nbest", "5"]
    output = run("sparse", *flags)
    assert_exact(output, scorers["sparse"], flags)
    assert not any("<unk>" in h.words for found in output.hypotheses().values() for h in found)


def test_options_that_change_nothing(run, tmp_path):
    """Flags of other generators, deprecated ones, and those that only print more."""
    plain = run("sparse", "--nbest", "3").hypotheses()
    others = ["--no-beamable-mm", "--no-early-stop", "--iter-decode-with-beam", "3"]
    others += ["--iter-decode-eos-penalty", "1", "--iter-decode-force-max-iter"]
    others += ["--decoding-format", "unigram", "--eos-token", "W1", "--lm-weight", "3"]
    others += ["--search-report", tmp_path / "report"]
    assert run("sparse", "--nbest", "3", *others).hypotheses() == plain


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignments_come_with_the_same_hypotheses(kind, run, once):
    flags = ("--nbest", "20", "--beam", "20", "--temperature", "0.1")
    output = run("sparse", *flags, "--print-alignment", kind)
    plain = once("sparse", *flags).hypotheses()
    assert any(len(best) < 20 for best in plain.values())
    assert output.hypotheses() == plain
    for number, lines in output.lines("A").items():
        for line, hypothesis in zip(lines, plain[number], strict=True):
            # softmax attention links each word; soft alignments have a row for the EOS, too
            assert len(line.split()) == len(hypothesis.words) + (kind == "soft")


def test_sampling_follows_the_seed(run):
    flags = ("--sampling", "--nbest", "5")
    first = run("sparse", *flags).hypotheses()
    assert run("sparse", *flags).hypotheses() == first
    assert run("sparse", *flags, "--seed", "7").hypotheses() != first


@pytest.mark.slow
def test_retained_dropout(run):
    """Scores are finite and repeatable; the scorer cannot compute those of a thinned model."""
    plain, thinned, again = (
        run("sparse", "--nbest", "5", *flags).hypotheses()
        for flags in ((), ("--retain-dropout",), ("--retain-dropout",))
    )
    assert thinned == again != plain
    for best in thinned.values():
        assert all(math.isfinite(hypothesis.score) for hypothesis in best)


@pytest.mark.parametrize(
    "flags",
    [
        ("--diversity-rate", "0.5", "--nbest", "5"),
        ("--beam", "6", "--diverse-beam-groups", "3", "--diverse-beam-strength", "0.5")
        + ("--nbest", "6", "--temperature", "0.1"),
    ],
    ids=["diversity-rate", "diverse-beam-groups"],
)
@pytest.mark.parametrize("model", ["sparse", "ensemble"])
def test_diversity_takes_whole_penalties_from_the_models_scores(model, flags, run, scorers):
    penalties = set()
    for number, best in run(model, *flags).hypotheses().items():
        for hypothesis in best:
            temperature = value(flags, "--temperature", 1.0)
            (scores,) = scorers[model].positional(
                [number], [hypothesis.words], temperature=temperature
            )
            actual = torch.tensor(hypothesis.positional)
            if scores[-1].isneginf():
                assert len(best) == 1 and actual[-1] == 0
                scores, actual = scores[:-1], actual[:-1]
            uses = ((scores - actual) / 0.5).round()
            assert_scores(actual, scores - 0.5 * uses, f"sentence {number}")
            if "--diversity-rate" in flags:  # the first word has no siblings
                assert uses[:1].eq(0).all() and uses[1:].ge(1).all()
            penalties |= set(uses.tolist())
    assert {0.0, 1.0, 2.0} <= penalties and min(penalties) == 0


@pytest.mark.parametrize("model", ["sparse", "ensemble"])
def test_match_source_len(model, run, scorers):
    found = run(model, "--match-source-len").hypotheses()
    assert sorted(found) == list(range(SENTENCES))
    for number, (hypothesis,) in found.items():
        (scores,) = scorers[model].positional([number], [hypothesis.words])
        assert_scores(hypothesis.positional[:-1], scores[:-1], f"sentence {number}")
        assert hypothesis.positional[-1] == 0 and math.isfinite(hypothesis.score)
        assert len(hypothesis.words) <= len(scorers[model].source(number))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("model", ["sparse", "ensemble"])
def test_score_of_the_reference(model, temperature, run, scorers):
    scorer, zeros = scorers[model], 0
    output = run(model, "--score-reference", "--temperature", temperature)
    for number, (scored,) in output.hypotheses().items():
        reference = scorer.reference(number)
        (expected,) = scorer.positional([number], [reference], temperature=temperature)
        actual = torch.tensor(scored.positional)
        assert agree(actual, expected).all(), f"sentence {number}: {actual} {expected}"
        assert scored.score == pytest.approx(actual.mean().item(), abs=1e-3)
        zeros += math.isinf(scored.score)
    assert (zeros > 0) == (model == "sparse")


def test_unknown_words_are_replaced(run, once, data, tmp_path):
    """fairseq takes --replace-unk for raw text only, and fails if there is an unknown word."""
    for language in ("de", "en"):
        shutil.copy(data / f"dict.{language}.txt", tmp_path)
        shutil.copy(data.parent / f"test.{language}", tmp_path / f"test.de-en.{language}")
    (tmp_path / "links").write_text("w1 W1\n")
    flags = ("--dataset-impl", "raw", "--replace-unk", tmp_path / "links")
    assert run("sparse", *flags, data=tmp_path).hypotheses() == once("sparse").hypotheses()


def test_wide_beam_prints_every_string_of_the_model(run, scorers):
    flags = ("--beam", "20", "--nbest", "20", "--temperature", "0.05", "--max-len-b", "5")
    compared = set()
    for number, best in run("sparse", *flags).hypotheses().items():
        # A rounding decides whether the others are there.
        strings = scorers["sparse"].live_strings(number, 5, temperature=0.05, limit=20, least=-16)
        if strings:
            assert {x.words for x in best if min(x.positional) > -15} <= strings
            assert strings <= {x.words for x in best}
            compared.add(len(best))
    assert 1 in compared and len(compared) > 3, "sentences with one string, and with more"


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_constraints_of_interactive(order, run, scorers, tmp_path):
    scorer = scorers["sparse"]
    wanted, lines = {}, []
    for number in range(SENTENCES):
        wanted[number] = scorer.reference(number)[: number % 3]
        if number % 4 == 3:
            wanted[number] = ["W1", "W2"]  # likely to have no probability
        source = scorer.words.string(scorer.source(number))
        lines.append("\t".join([source, *wanted[number]]) + "\n")
    (tmp_path / "input").write_text("".join(lines))
    flags = ["--nbest", "5", "--temperature", "0.3"]
    buffer = ("--input", tmp_path / "input", "--buffer-size", "20", "--batch-size", "7")
    output = run("sparse", *flags, *buffer, "--constraints", order, command=interactive)

    def meets_constraints(number, words):
        if not set(wanted[number]) <= set(words):
            return False
        rest = iter(words)
        return order == "unordered" or all(word in rest for word in wanted[number])

    assert_exact(output, scorer, flags, allowed=meets_constraints)
    assert 0 < output.incomplete() < SENTENCES


def test_constraints_of_generate(run, once):
    assert run("sparse", "--constraints").hypotheses() == once("sparse").hypotheses()


@pytest.mark.parametrize("model", ["sparse", "softmax"])
def test_steps_of_the_search_are_printed(model, run):
    output = run(model, "--print-step")
    steps = {number: [int(line) for line in lines] for number, lines in output.lines("I").items()}
    assert sorted(steps) == list(range(SENTENCES))
    for number, (best, *_) in output.hypotheses().items():
        assert len(best.words) < steps[number][0] <= MAX_LEN + 1


def test_search_report(run, tmp_path):
    report = tmp_path / "report.jsonl"
    output = run("sparse", "--beam", "20", "--nbest", "20", "--search-report", report)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    best = output.hypotheses()
    assert sorted(line["id"] for line in lines) == list(range(SENTENCES))
    for line in lines:
        found = best[line["id"]]
        assert line["hypotheses"] == len(found)
        assert line["score"] == pytest.approx(found[0].score, abs=1e-3)
        mass = math.fsum(math.exp(sum(hypothesis.positional)) for hypothesis in found)
        if line["exact"]:
            assert line["optimal"] and line["dropped_mass"] == 0
            assert mass <= 1 + 1e-3
        elif not line["incomplete"]:
            assert 0 < line["dropped_mass"] <= 1.001 - mass
    exact, optimal = (sum(line[name] for line in lines) for name in ("exact", "optimal"))
    assert f"certified: {exact} of {SENTENCES} sentences" in output.log
    assert f", {optimal} of {SENTENCES} sentences" in output.log
    with pytest.raises(ValueError, match="--search-report .*: No such file"):
        run("sparse", "--search-report", tmp_path / "none" / "report.jsonl")


@pytest.mark.slow
def test_exact_search(run, scorers):
    flags = ["--exact-search", "--unnormalized", "--nbest", "2", "--exact-search-nodes", "3000"]
    exact = run("sparse", *flags)
    found = assert_exact(exact, scorers["sparse"], flags)
    beam = run("sparse", "--unnormalized", "--beam", "3").hypotheses()
    assert "optimal" in exact.log
    for number, hypotheses in found.items():
        assert hypotheses[0].score >= beam[number][0].score - 1e-3
    prefix = ["--prefix-size", "2", "--exact-search-nodes", "100"]
    beam = run("sparse", *prefix[:2], "--beam", "5").hypotheses()
    for number, hypotheses in run("sparse", "--exact-search", *prefix).hypotheses().items():
        assert hypotheses[0].words[:2] == beam[number][0].words[:2]
        assert hypotheses[0].score >= beam[number][0].score - 1e-3
    for flag in ("--sampling --nbest 5", "--diverse-beam-groups 5"):
        with pytest.raises(ValueError, match=f"--exact-search does not go with {flag.split()[0]}"):
            run("sparse", "--exact-search", *flag.split())


def test_score_normalization_is_for_alpha_relu(run):
    with pytest.raises(ValueError, match="--score-normalization sum is for"):
        run("sparse", "--score-normalization", "sum")
