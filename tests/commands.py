"""fairseq's commands on small data, and what they print."""

import json
import os
import re
import socket
import subprocess
import sys

import toy


def train(data, save_dir, *flags, check=True, **options):
    return toy.run(
        "fairseq_cli.train",
        *(data, "--user-dir", toy.USER_DIR, "--save-dir", save_dir, "--cpu"),
        *("--source-lang", "de", "--target-lang", "en", "--task", "translation_sparse"),
        *("--arch", "transformer_sparse_tiny", "--share-all-embeddings", "--dropout", "0.1"),
        *("--encoder-normalize-before", "--decoder-normalize-before"),
        *("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "400", "--log-format", "json"),
        *flags,
        check=check,
        **options,
    )


def train_on_two_workers(data, save_dir, *flags):
    """Train on two real workers on the CPU; what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(2):
        command = [sys.executable, "-m", "fairseq_cli.train", str(data)] + (
            f"--user-dir {toy.USER_DIR} --save-dir {save_dir} --cpu --task translation_sparse "
            "--source-lang de --target-lang en --arch transformer_sparse_tiny "
            "--optimizer adam --lr 0.01 --log-format json --dropout 0 "
            f"--distributed-world-size 2 --distributed-rank {rank} --distributed-no-spawn "
            f"--distributed-backend gloo --distributed-init-method tcp://127.0.0.1:{port} "
            "--ddp-backend legacy_ddp"  # the default one takes a CPU model for one on a GPU
        ).split()
        command += map(str, flags)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        workers.append(subprocess.Popen(command, env=environment, **pipes))
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)[-6000:]
    return outputs


def generate(data, path, *flags, command="fairseq_cli.generate", check=True):
    return toy.run(
        command,
        *(data, "--user-dir", toy.USER_DIR, "--path", path, "--cpu", "--max-tokens", "600"),
        *("--source-lang", "de", "--target-lang", "en"),
        *(flags if "--task" in flags else ("--task", "translation_sparse", *flags)),
        check=check,
    )


def hypotheses(output):
    """Sentence number -> the (score, words) of its hypotheses, in the order printed."""
    found = {}
    for number, score, words in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.MULTILINE):
        found.setdefault(int(number), []).append((float(score), words))
    return found


def logged(output, tag):
    """The JSON records that fairseq logged under a tag ("train", "valid")."""
    return [json.loads(line) for line in re.findall(rf"\| {tag} \| (\{{.*\}})", output)]
