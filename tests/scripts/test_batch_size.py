"""scripts/batch_size.py: batch sizes in target tokens."""

import pytest

import batch_size
import toy
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy.binarised_text(tmp_path_factory.mktemp("text"), pairs=3000)


def run(data, capsys, *arguments):
    command = [str(data), "--source-lang", "de", "--target-lang", "en", *map(str, arguments)]
    status = batch_size.main(command)
    return status, capsys.readouterr()


@pytest.mark.parametrize(("devices", "device_tokens"), [(1, 400), (1, 2000), (3, 300)])
def test_an_update_has_that_many_target_tokens(data, devices, device_tokens, capsys):
    status, printed = run(
        data,
        capsys,
        "--target-tokens",
        1500,
        "--devices",
        devices,
        "--device-tokens",
        device_tokens,
    )
    max_tokens, frequency, mean = map(int, printed.out.split())
    assert status == 0 and max_tokens <= device_tokens
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


def test_bad_input_is_refused_by_name(data, capsys):
    assert run(data / "nothing", capsys, "--target-tokens", 9, "--device-tokens", 9)[0] == 1
    status, printed = run(data, capsys, "--target-tokens", 100, "--device-tokens", 1)
    assert status == 1 and "give --device-tokens" in printed.err
