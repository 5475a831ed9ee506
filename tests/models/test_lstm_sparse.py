import copy

import pytest
import torch
from fairseq.models.lstm import LSTMModel

import toy
from fairseq_sparse.models.lstm_sparse import LSTMSparseModel
from fairseq_sparse.modules import seeded_dropout
from fairseq_sparse.modules.attention_config import GLOBAL_ATTENTION_KINDS
from fairseq_sparse.modules.global_attention import GlobalAttention
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

TWO_LAYERS = ("--encoder-layers", 2, "--decoder-layers", 2, "--encoder-bidirectional")
SMALL = ("--encoder-embed-dim", 12, "--decoder-embed-dim", 12, "--decoder-out-embed-dim", 12)
LAYOUTS = [
    (),
    TWO_LAYERS,
    ("--encoder-hidden-size", 6, *TWO_LAYERS),
    ("--decoder-hidden-size", 10),
    ("--share-all-embeddings",),
    ("--share-decoder-input-output-embed", *TWO_LAYERS),
    ("--decoder-attention", "0"),
    ("--adaptive-softmax-cutoff", "8,12"),
]
# fairseq's encoder wants the longest source first, as fairseq's batches have it.
SIZES = ((6, 5), (4, 3), (2, 7))


def ids(flags):
    return " ".join(map(str, flags)) or "plain"


def build(*flags, arch="lstm_sparse", criterion="a_criterion_of_the_user", **options):
    if "--adaptive-softmax-cutoff" in flags and criterion.startswith("a_"):
        criterion = "adaptive_loss"
    return toy.model(*SMALL, *flags, arch=arch, criterion=criterion, **options)


def tau_of(transform):
    return ("--output-tau", 0.5) if transform == "alpha_relu" else ()


@pytest.fixture
def task():
    return toy.task()


@pytest.fixture
def sample(task):
    return toy.batch(task.target_dictionary, SIZES)


@pytest.mark.parametrize("flags", LAYOUTS, ids=ids)
def test_with_softmax_it_is_the_stock_lstm(flags, task, sample, monkeypatch):
    """Where dropout is fairseq's, with which it draws the same masks."""
    monkeypatch.setattr(seeded_dropout, "dropout", torch.nn.functional.dropout)
    sparse = build(*flags, for_task=task)
    stock = build(*flags, arch="lstm", for_task=task)
    assert type(stock) is LSTMModel
    assert list(sparse.state_dict()) == list(stock.state_dict())
    for ours, theirs in zip(sparse.parameters(), stock.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    stock.load_state_dict(sparse.state_dict())
    sparse.load_state_dict(stock.state_dict())
    toy.assert_same(sparse.train(), stock.train(), sample)


@pytest.mark.parametrize("shared", [False, True])
def test_embeddings_are_read_and_frozen(shared, task, tmp_path):
    size = len(task.target_dictionary)
    rows = [f"w{i} " + " ".join([str(i)] * 12) for i in range(size - 4)]
    (tmp_path / "vectors").write_text("\n".join([f"{size - 4} 12", *rows]) + "\n")
    flags = ("--encoder-embed-path", tmp_path / "vectors", "--decoder-freeze-embed")
    flags += ("--share-all-embeddings",) if shared else ("--encoder-freeze-embed",)
    model = build(*flags, for_task=task)
    expected = torch.arange(size - 4.0).repeat(12, 1).t()
    assert torch.equal(model.encoder.embed_tokens.weight[4:], expected)
    assert not model.encoder.embed_tokens.weight.requires_grad
    assert not model.decoder.embed_tokens.weight.requires_grad
    assert (model.decoder.embed_tokens is model.encoder.embed_tokens) == shared


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--encoder-layers 2", "--encoder-layers"),
        ("--share-all-embeddings --decoder-embed-path x", "--decoder-embed-path"),
        ("--share-all-embeddings --encoder-embed-dim 8", "--encoder-embed-dim"),
        ("--share-decoder-input-output-embed --decoder-out-embed-dim 8", "--decoder-embed-dim"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(flags, named):
    with pytest.raises(ValueError, match=named):
        build(*flags.split())


@pytest.mark.each_value
@pytest.mark.parametrize("attention", GLOBAL_ATTENTION_KINDS)
@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
@pytest.mark.parametrize("flags", LAYOUTS[2:6], ids=ids)
def test_every_attention_trains_with_every_transform(flags, transform, attention, task, sample):
    model = build(
        *flags,
        *("--attention", attention, "--output-transform", transform, *tau_of(transform)),
        for_task=task,
    ).train()
    projection = model.decoder.output_projection
    assert isinstance(projection, OutputProjection) and projection.transform.name == transform
    assert isinstance(model.decoder.attention, GlobalAttention) == (attention != "softmax")
    logits = model(**sample["net_input"])[0]
    target = sample["target"].flatten()
    projection.transform.loss(logits.flatten(0, 1), target, ignore_index=1).backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    if "--share-all-embeddings" in flags:
        assert projection.weight is model.encoder.embed_tokens.weight


@pytest.mark.parametrize(
    ("transform", "flags"), [("alpha_relu", ()), ("entmax15", ("--share-all-embeddings",))]
)
def test_a_reloaded_model_gives_the_numbers_of_the_one_in_memory(
    transform, flags, task, sample, tmp_path
):
    flags = (*flags, "--attention", "entmax15", "--output-transform", transform)
    model = build(*flags, *tau_of(transform), for_task=task).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = build(*flags, for_task=task, seed=2).eval()
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"))
    with torch.no_grad():
        ours, theirs = (m(**sample["net_input"]) for m in (loaded, model))
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    for log in (True, False):
        assert torch.equal(
            loaded.get_normalized_probs(ours, log), model.get_normalized_probs(theirs, log)
        )


@pytest.mark.parametrize("flags", [(), ("--share-decoder-input-output-embed",)], ids=ids)
def test_a_stock_checkpoint_starts_a_model_with_any_transform_and_attention(flags):
    stock = build(*flags, arch="lstm", seed=7)
    attentions = (*GLOBAL_ATTENTION_KINDS, "entmax15")
    for transform, attention in zip(OUTPUT_TRANSFORMS, attentions, strict=True):
        model = build(
            *flags,
            *("--output-transform", transform, *tau_of(transform), "--attention", attention),
        )
        model.load_state_dict(copy.deepcopy(stock.state_dict()), strict=True)
        for name, value in stock.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
        if transform == "alpha_relu":
            assert model.decoder.output_projection.transform.tau == 0.5


@pytest.mark.parametrize("attention", GLOBAL_ATTENTION_KINDS)
def test_padding_changes_nothing_and_gets_no_attention(attention, task, sample):
    """A sentence has the same output alone as in a batch with longer ones."""
    model = build(*LAYOUTS[2], "--attention", attention, for_task=task).eval()
    with torch.no_grad():
        together, attention_together = model(**sample["net_input"])
        for row, (source, target) in enumerate(SIZES):
            alone = toy.batch(task.target_dictionary, SIZES[row : row + 1])["net_input"]
            alone["src_tokens"] = sample["net_input"]["src_tokens"][row : row + 1, -source - 1 :]
            alone["prev_output_tokens"] = sample["net_input"]["prev_output_tokens"][
                row : row + 1, : target + 1
            ]
            logits, weights = model(**alone)
            torch.testing.assert_close(logits[0], together[row, : target + 1])
            # [source length]; the LSTM's encoder moves the padding behind the source
            beside = attention_together[row, : target + 1]
            torch.testing.assert_close(weights[0], beside[:, : source + 1])
            assert not beside[:, source + 1 :].any()
    torch.testing.assert_close(attention_together.sum(-1), torch.ones(len(SIZES), 8))


@pytest.mark.parametrize("attention", GLOBAL_ATTENTION_KINDS)
def test_incremental_decoding_equals_the_full_forward(attention, task, sample):
    model = build(*LAYOUTS[2], "--attention", attention, for_task=task).eval()
    source, previous = sample["net_input"], sample["net_input"]["prev_output_tokens"]
    with torch.no_grad():
        full, weights = model(**source)
        encoder_out = model.encoder(source["src_tokens"], source["src_lengths"])
        state = {}
        for step in range(previous.size(1)):
            logits, attended = model.decoder(
                previous[:, : step + 1], encoder_out=encoder_out, incremental_state=state
            )
            torch.testing.assert_close(logits[:, 0], full[:, step])
            torch.testing.assert_close(attended[:, 0], weights[:, step])


@pytest.mark.parametrize("attention", ["softmax", "sparsemax"])
def test_the_attentional_layer_has_a_bias_where_it_is_asked_for(attention, task, sample):
    flags = ("--attention", attention)
    plain = build(*flags, for_task=task).eval()
    model = build(*flags, "--attention-bias", for_task=task).eval()
    bias = model.decoder.attention.output_proj.bias
    assert {*model.state_dict()} - {*plain.state_dict()} == {"decoder.attention.output_proj.bias"}
    assert 0 < bias.abs().max() <= 0.1
    # For a checkpoint from before there was a bias, it is 0.
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model(**sample["net_input"])[0], plain(**sample["net_input"])[0])
    with torch.no_grad():
        bias.fill_(20.0)  # tanh is 1 wherever the bias is in the sum
    states = model.decoder.extract_features(
        sample["net_input"]["prev_output_tokens"],
        model.encoder(sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]),
    )[0]
    torch.testing.assert_close(states, torch.ones_like(states))


def test_a_part_of_a_checkpoint_leaves_the_rest_of_the_model_alone(task):
    flags = ("--attention-bias", "--share-decoder-input-output-embed")
    model, other = build(*flags, for_task=task), build(*flags, for_task=task)
    before = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    encoder = {k: v for k, v in other.state_dict().items() if k.startswith("encoder.")}
    model.load_state_dict(encoder, strict=False)
    for name, value in model.decoder.state_dict().items():
        assert torch.equal(value, before[name]), name
    model.decoder.load_state_dict(other.decoder.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_settings_from_before_there_was_a_bias_give_a_model_without_one(task):
    """fairseq does not apply an architecture to the settings in a checkpoint."""
    args = toy.flags(*SMALL, arch="lstm_sparse_mt", criterion="entmax_loss")
    del args.attention_bias
    model = LSTMSparseModel.build_model(args, task)
    assert model.decoder.attention.output_proj.bias is None


def test_architectures_have_the_sizes_of_the_paper(task):
    for arch, size in (("lstm_sparse_morph", 300), ("lstm_sparse_mt", 500)):
        model = toy.model(arch=arch, for_task=task, criterion="entmax_loss")
        assert model.encoder.bidirectional and model.encoder.num_layers == 2
        assert model.encoder.output_units == size  # both directions
        assert [cell.hidden_size for cell in model.decoder.layers] == [size, size]
        # Input feeding: the first layer reads the embedding and the last attentional state.
        assert model.decoder.layers[0].input_size == 2 * size
        assert model.decoder.encoder_hidden_proj is None
        assert model.decoder.output_projection.weight.shape == (20, size)
        assert model.decoder.dropout_out_module.p == model.encoder.dropout_in_module.p == 0.3
        assert model.decoder.attention.output_proj.bias.shape == (size,)
        assert model.decoder.attention.input_proj.bias is None
        assert model.decoder.output_projection.bias.shape == (20,)
    smaller = toy.model(
        *("--decoder-hidden-size", 8, "--dropout", 0.5),
        arch="lstm_sparse_morph",
        for_task=task,
        criterion="entmax_loss",
    )
    assert smaller.decoder.hidden_size == 8 and smaller.decoder.dropout_out_module.p == 0.5
    # Settings from a file override the architecture.
    chosen = toy.flags(arch="lstm_sparse_morph", encoder_bidirectional=False, attention_bias=False)
    assert not chosen.encoder_bidirectional and not chosen.attention_bias


@pytest.mark.parametrize(
    "flags, named",
    [
        ("--attention-alpha 1.3", "--attention-alpha.*entmax"),
        ("--attention-bias --decoder-attention 0", "--attention-bias"),
        ("--attention sparsemax --decoder-attention 0", "--decoder-attention"),
        ("--adaptive-softmax-cutoff 8 --output-transform sparsemax", "--output-transform"),
        ("--output-transform sparsemax", "--criterion cross_entropy.*--criterion entmax_loss"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, named):
    criterion = {"criterion": "cross_entropy"} if "--criterion" in named else {}
    with pytest.raises(ValueError, match=named):
        build(*flags.split(), **criterion)


def test_attention_whose_weights_do_not_sum_to_one_is_no_choice():
    with pytest.raises(SystemExit):
        build("--attention", "rela_g")


def test_stock_search_over_a_sparse_model_is_refused_and_over_a_dense_one_is_not():
    from argparse import Namespace

    cfg = Namespace(generation=Namespace(), task=Namespace(_name="translation"))
    with pytest.raises(ValueError, match="use --task translation_sparse"):
        build("--output-transform", "entmax15").prepare_for_inference_(cfg)
    build("--attention", "entmax15").prepare_for_inference_(cfg)
    build("--adaptive-softmax-cutoff", "8,12").prepare_for_inference_(cfg)
