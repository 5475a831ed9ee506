"""fairseq-sparse run refuses wrong command lines, and changes nothing then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_sparse.commands import cli

WRONG = """
no_such_data softmax | 'no_such_data'
quickstart ../softmax | '../softmax'
quickstart softmax --average 10 | --average
sigmorphon2018_medium_part softmax --average 5 | --average
sigmorphon2018_medium_part softmax --bpe-merges 500 | --bpe-merges
multi30k_de_en softmax --set corpus.tokens=fr:space | fr
quickstart softmax --raw-dir y | --raw-dir
quickstart softmax --finetune nowhere | nowhere
quickstart entmax --attention-cross sparsemax --attention-alpha 1.5 | --attention-alpha
quickstart softmax --cpu --stages prepare,average | train
quickstart softmax --cpu --stages train --data-dir a:b | a:b
quickstart softmax --cpu --stages train --data-dir a,b | a,b
"""
BAD_USAGE = """
quickstart | a variant
quickstart softmax --stages prepare-train-align | 'train-align'
quickstart softmax --stages train-9 | '9'
quickstart softmax --stages train-prepare | empty range
quickstart softmax --stages , | ''
quickstart softmax --frobnicate | --frobnicate
quickstart softmax --updat 3 | --updat
quickstart softmax --set lr | 'lr'
quickstart softmax --cpu --gpu | --gpu
quickstart softmax entmax15 --run-dir x | --run-dir
quickstart softmax --seed 1,2 --run-dir x | --run-dir
quickstart softmax --jobs 0 | --jobs
quickstart softmax --finetune /dev/null --settings sue | --settings
quickstart entmax15 --settings finetuning | --finetune
quickstart softmax --tokenized de | --tokenized
quickstart softmax --hold-out 7 | --hold-out
--data x --source-lang en softmax --separate-bpe | --separate-bpe
--data x --source-lang de softmax --raw-dir y | --raw-dir
--data x softmax | --source-lang
--data quickstart --source-lang de softmax | --data
quickstart softmax --nnodes 2 --master-addr a | --node-rank
quickstart softmax --nnodes=2 --node-rank=1 | --master-addr
quickstart softmax --nnodes=2 --node-rank=2 --master-addr=a | --node-rank 2
quickstart softmax --master-port 99999 | --master-port
quickstart softmax --master-addr a | --nnodes
quickstart softmax --label-smoothing 2 | --label-smoothing
quickstart softmax --label-smoothing nan | --label-smoothing
quickstart softmax --bpe-merges -5 | --bpe-merges
--data x --source-lang de --target-lang de softmax | --target-lang
"""


@pytest.mark.parametrize("line", [*WRONG.split("\n")[1:-1], *BAD_USAGE.split("\n")[1:-1]])
def test_a_wrong_command_line_is_refused(line: str, tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, _, fault = line.partition(" | ")
    try:
        status = cli.run("run", [*arguments.split(), "--dry-run"])
    except SystemExit as end:
        status = end.code
    assert status == (1 if line in WRONG else 2)
    assert fault in capfd.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
