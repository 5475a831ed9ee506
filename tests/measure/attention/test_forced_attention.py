"""The attention of each sentence pair, against the model run on the pair alone."""

import pytest
import torch

import toy
from fairseq_sparse.measure.attention.attention_statistics import PLACES, watch_attention
from fairseq_sparse.measure.attention.forced_attention import forced_attention

LSTM = ["--encoder-layers", 2, "--decoder-layers", 2, "--encoder-bidirectional"]
LSTM += ["--encoder-embed-dim", 8, "--decoder-embed-dim", 8]
FLAGS = {
    "softmax": ("transformer_tiny", []),
    "rela_g": ("transformer_sparse_tiny", ["--attention", "rela_g"]),
    "lstm": ("lstm", LSTM),
    "lstm_sparse": ("lstm_sparse", [*LSTM, "--attention", "sparsemax"]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_pairs_of_a_batch_equal_pairs_alone(name: str) -> None:
    arch, flags = FLAGS[name]
    task = toy.task()
    model = toy.model(*flags, arch=arch, for_task=task, criterion="").double().eval()
    pad, sizes = task.source_dictionary.pad(), ((6, 5), (4, 3), (2, 7))
    sample = toy.batch(task.source_dictionary, sizes)
    sample["id"] = torch.tensor([7, 0, 3])
    places = PLACES if arch.startswith("transformer") else ["cross"]
    pairs = list(forced_attention(model, sample, pad, places))
    assert [pair.number for pair in pairs] == [7, 0, 3]
    for pair, (source_length, target_length) in zip(pairs, sizes, strict=True):
        assert len(pair.source) == source_length + 1 and len(pair.target) == target_length + 1
        assert pair.source[-1] == pair.target[-1] == task.source_dictionary.eos()
        alone = {}

        def keep(place, layer, weights, masked, alone=alone):
            alone[place, layer] = weights[:, 0].masked_fill(masked, 0)

        with torch.no_grad(), watch_attention(model, keep):
            model(pair.source[None], torch.tensor([source_length + 1]), pair.target.roll(1)[None])
        assert {place for place, _ in alone} == set(places)
        for (place, layer), weights in alone.items():
            torch.testing.assert_close(
                pair.weights[place][layer], weights.float(), rtol=1e-5, atol=0, msg=place
            )
            assert torch.equal(pair.weights[place][layer] == 0, weights == 0)


def test_asks_for_places_that_are_there() -> None:
    task = toy.task()
    model = toy.model(for_task=task).eval()
    sample = toy.batch(task.source_dictionary)
    pair = next(forced_attention(model, sample, task.source_dictionary.pad()))
    assert set(pair.weights) == {"cross"}
    language_model = toy.model("--no-cross-attention", for_task=task).eval()
    with pytest.raises(ValueError, match="no cross attention"):
        next(forced_attention(language_model, sample, task.source_dictionary.pad()))
    lstm = toy.model(arch="lstm", for_task=task, criterion="").eval()
    with pytest.raises(ValueError, match="no encoder attention"):
        sample = toy.batch(task.source_dictionary, ((6, 5), (2, 7)))
        next(forced_attention(lstm, sample, task.source_dictionary.pad(), ["encoder"]))
