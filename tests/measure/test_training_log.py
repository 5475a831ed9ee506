"""Reading fairseq's logs, from lines as fairseq writes them."""

import json
from pathlib import Path

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.training_log import (
    curves,
    read_log,
    read_records,
    threshold_curve,
)


def line(tag: str, **numbers: object) -> str:
    prefix = "" if tag == "train_inner" else f"{tag}_"
    texts = {prefix + name: str(value) for name, value in numbers.items()}
    return f"2024-01-01 00:00:00 | INFO | {tag} | {json.dumps({'epoch': 1, **texts})}"


def log(*lines: str) -> str:
    return "\n".join(["something else", *lines, "| INFO | fairseq.trainer | begin {epoch}"])


EPOCH = "epoch 002 | valid on 'valid' subset | loss 3.338 | best_loss 3.3 | num_updates 6"
TRAINED = "epoch 002 | loss 3.626 | ppl 12.35 | num_updates 6 | lr 3e-05 | train_wall 0 | wall 4"
STEP = "epoch 002:      1 / 3 loss=3.75, ppl=13.46, wps=2611.9, num_updates=4, lr=0.003"
JSON = '{"epoch": 2, "valid_loss": "3.338", "valid_best_loss": "3.3", "valid_num_updates": "6"}'


@pytest.mark.parametrize("prefix", [True, False])  # False: as in the file of --log-file
def test_every_format_of_fairseq_is_read(prefix: bool) -> None:
    def tagged(tag: str, text: str) -> str:
        return f"2024-01-01 00:00:00 | INFO | {tag} | {text}" if prefix else text

    valid = ("valid", {"epoch": 2, "loss": 3.338, "best_loss": 3.3, "num_updates": 6})
    step = ("train_inner", {"epoch": 2, "loss": 3.75, "ppl": 13.46, "wps": 2611.9})
    step[1].update(num_updates=4, lr=0.003)
    trained = {"epoch": 2, "loss": 3.626, "ppl": 12.35, "num_updates": 6, "lr": 3e-05}
    trained |= {"train_wall": 0, "wall": 4}
    text = log(
        tagged("train_inner", STEP),
        tagged("valid", EPOCH),
        tagged("train", TRAINED),
        tagged(
            "train_inner", '{"epoch": 2, "loss": "3.75", "train_wall": "1", "num_updates": "4"}'
        ),
        tagged("valid", JSON),
        "epoch 002:  33%|###3  | 1/3 [00:00<00:00, loss=3.75]",  # a bar of tqdm
    )
    inner = ("train_inner", {"epoch": 2, "loss": 3.75, "train_wall": 1, "num_updates": 4})
    assert read_records(text) == [step, valid, ("train", trained), inner, valid]


def test_a_record_that_was_cut_off_is_passed_over() -> None:
    whole = line("valid", loss=3.5, num_updates=6)
    settings = "2024-01-01 | INFO | fairseq_cli.train | {'_name': None}"
    text = log(whole, line("valid", loss=3.0, num_updates=9)[:-20] + settings)
    assert read_records(text) == read_records(log(whole)) != []


def test_what_was_resumed_counts_once() -> None:
    records = read_records(
        log(
            line("train_inner", num_updates=10, loss=5),
            line("valid", num_updates=15, loss=6),
            line("train_inner", num_updates=20, loss=4),
            "Killed",
            line("train_inner", num_updates=10, loss=3, extra=1),
            line("valid", num_updates=10, loss=7, note="none"),
        )
    )
    assert [tag for tag, _ in records] == ["train_inner", "valid"]
    assert curves(records, "train_inner") == {
        "updates": [10],
        "epoch": [1],
        "loss": [3],
        "extra": [1],
    }
    assert curves(records, "valid") == {"updates": [10], "epoch": [1], "loss": [7]}
    assert curves(records, "test") == {"updates": []}


def test_threshold_is_taken_between_epochs_where_it_is_logged() -> None:
    inner = [line("train_inner", num_updates=n, logit_norm=10 + n, tau=1) for n in (1, 2)]
    epoch = line("train", num_updates=2, logit_norm=50)
    curve = threshold_curve(read_records(log(*inner, epoch)))
    assert curve == {"updates": [1, 2], "tau": [1, 1], "logit_norm": [11, 12]}
    curve = threshold_curve(read_records(log(epoch)))
    assert curve == {"updates": [2], "tau": [None], "logit_norm": [50]}
    curve = threshold_curve(read_records(log(line("train_inner", num_updates=1, loss=2))))
    assert curve == {"updates": [], "tau": [], "logit_norm": []}


@pytest.mark.parametrize("row", ["1\tx", "1\t2\t3"])
def test_a_damaged_table_of_validations_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "training.tsv"
    path.write_text("num_updates\tloss\n1\t0.5\n")
    assert read_log(path) == [("valid", {"num_updates": 1, "loss": 0.5})]
    path.write_text(f"num_updates\tloss\n{row}\n")
    with pytest.raises(AnalysisError, match="training.tsv"):
        read_log(path)
