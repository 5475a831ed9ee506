"""Running fairseq's commands on small data, and parsing their output."""

import json
import os
import re
import socket
import subprocess

import toy
from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.recipes.launch import Launch
from fork_python import PYTHON

# In fairseq 0.12.2: a tensor that is never filled, and copies of parameters that it makes for its
# fused layers and never trains.
_UNUSED = re.compile(r"_float_tensor$|\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$")


def train(data, save_dir, *flags, check=True, **options):
    return toy.run(
        "fairseq_cli.train",
        *(data, "--user-dir", toy.USER_DIR, "--save-dir", save_dir, "--cpu"),
        *("--source-lang", "de", "--target-lang", "en", "--task", "translation_sparse"),
        *("--arch", "transformer_sparse_tiny", "--share-all-embeddings", "--dropout", "0.1"),
        *("--encoder-normalize-before", "--decoder-normalize-before"),
        *("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "400", "--log-format", "json"),
        *("--num-workers", "0"),  # test_real_starts.py has a process for them
        *flags,
        check=check,
        **options,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_on_two_workers(data, save_dir, *flags):
    """Train on two CPU workers, started as torchrun does; return what each printed."""
    port = free_port()
    command = [PYTHON, "-m", "fairseq_cli.train", str(data), *Launch(workers=2).flags()] + (
        f"--user-dir {toy.USER_DIR} --save-dir {save_dir} --cpu --task translation_sparse "
        "--source-lang de --target-lang en --arch transformer_sparse_tiny "
        "--optimizer adam --lr 0.01 --log-format json --dropout 0 --distributed-backend gloo "
        "--ddp-backend legacy_ddp"  # the default backend takes a CPU model for one on a GPU
    ).split()
    command += map(str, flags)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    workers = []
    for rank in ("0", "1"):
        place |= {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
        workers.append(subprocess.Popen(command, env={**os.environ, **place}, **pipes))
    try:
        outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)[-6000:]
    return outputs


def generate(data, path, *flags, command="fairseq_cli.generate", check=True):
    return toy.run(
        command,
        *(data, "--user-dir", toy.USER_DIR, "--path", path, "--cpu", "--max-tokens", "600"),
        *("--num-workers", "0"),
        *("--source-lang", "de", "--target-lang", "en"),
        *(flags if "--task" in flags else ("--task", "translation_sparse", *flags)),
        check=check,
    )


def hypotheses(output):
    """Return sentence number -> (score, words) of its hypotheses, in the order printed."""
    found = {}
    for number, score, words in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.MULTILINE):
        found.setdefault(int(number), []).append((float(score), words))
    return found


def logged(output, tag):
    """Return the JSON records that fairseq logged under a tag ("train", "valid")."""
    return [json.loads(line) for line in re.findall(rf"\| {tag} \| (\{{.*\}})", output)]


def output_flags(transform):
    """Return the flags of an output transform and its loss."""
    criterion = "alpha_relu_loss" if transform == "alpha_relu" else "entmax_loss"
    return ("--output-transform", transform, "--criterion", criterion)


def parameters(checkpoint):
    """Return the parameters that the model uses, and tau, by name."""
    model = load_checkpoint(checkpoint)["model"]
    return {name: value for name, value in model.items() if not _UNUSED.search(name)}
