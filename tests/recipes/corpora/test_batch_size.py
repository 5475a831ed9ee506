"""corpora/batch_size.py: batch sizes in target tokens."""

import re

import pytest

import toy
from fairseq_sparse.commands import corpus_batch_size
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.batch_size import find_batch_size, read_lengths
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"), pairs=3000)


@pytest.mark.parametrize(("devices", "device_tokens"), [(1, 400), (1, 2000), (3, 300)])
def test_an_update_has_that_many_target_tokens(data, devices, device_tokens, capsys):
    command = [str(data), "--source-lang", "de", "--target-lang", "en", "--target-tokens", "1500"]
    command += ["--devices", str(devices), "--device-tokens", str(device_tokens), "--print"]
    assert corpus_batch_size.main([*command, "max-tokens"]) == 0
    assert corpus_batch_size.main([*command, "update-freq"]) == 0
    printed = capsys.readouterr()
    max_tokens, frequency = map(int, printed.out.split())
    (mean,) = set(map(int, re.findall(": ([0-9]+) target tokens", printed.err)))
    assert max_tokens <= device_tokens
    # The batches that fairseq-train makes with these flags.
    config = TranslationSparseConfig(
        data=str(data), dataset_impl=None, required_seq_len_multiple=1, train_subset="train"
    )
    task = TranslationSparseTask.setup_task(config)
    task.load_dataset("train")
    batches = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=max_tokens,
        required_batch_size_multiple=8,
        seed=1,
        update_epoch_batch_itr=False,
    ).next_epoch_itr(shuffle=False)
    counts = [batch["ntokens"] for batch in batches]
    per_update = sum(counts) / len(counts) * devices * frequency
    assert per_update == pytest.approx(1500, rel=0.1)
    assert per_update == pytest.approx(mean, rel=0.03)


def test_bad_input_is_refused_by_name(data):
    with pytest.raises(RecipeError, match="nothing"):
        read_lengths(data / "nothing", "de", "en")
    with pytest.raises(RecipeError, match="--device-tokens"):
        find_batch_size(read_lengths(data, "de", "en"), 100, 1, 1)
