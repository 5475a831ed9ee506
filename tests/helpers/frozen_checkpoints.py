"""The models of the frozen checkpoints in ``tests/data``, and the results of a checkpoint."""

import contextlib
import gzip
import io
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fairseq_cli import generate, train

from commands import hypotheses
from fairseq_sparse.checkpoints.loading import load_checkpoint
from fairseq_sparse.measure.model_loading import load_batches, load_models

FOLDER = Path(__file__).parents[1] / "data"
DATA = FOLDER / "bin"
UPDATES = 80

_TRANSLATION = "--task translation_sparse --source-lang de --target-lang en"
_TRANSFORMER = f"""{_TRANSLATION} --arch transformer_sparse_tiny --share-all-embeddings
    --encoder-embed-dim 8 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --encoder-layers 1
    --decoder-embed-dim 8 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --decoder-layers 1
    --encoder-normalize-before --decoder-normalize-before
    --max-source-positions 32 --max-target-positions 32"""
_LSTM = f"""{_TRANSLATION} --arch lstm_sparse --encoder-bidirectional --share-all-embeddings
    --encoder-embed-dim 8 --encoder-hidden-size 8 --encoder-layers 1
    --decoder-embed-dim 8 --decoder-hidden-size 8 --decoder-out-embed-dim 8 --decoder-layers 1"""
_LM = """--task language_modeling --tokens-per-sample 8
    --arch transformer_lm_sparse --share-decoder-input-output-embed --decoder-layers 1
    --decoder-embed-dim 8 --decoder-input-dim 8 --decoder-output-dim 8
    --decoder-ffn-embed-dim 16 --decoder-attention-heads 2"""
_BLEU = '--eval-bleu --eval-bleu-args {"beam":2}'  # leaves NumPy's numbers in the checkpoint

FLAGS = {
    "softmax": f"{_TRANSFORMER} --criterion entmax_loss --label-smoothing 0.1 {_BLEU}",
    "sparsemax_rela_i": f"""{_TRANSFORMER} --criterion entmax_loss --output-transform sparsemax
        --attention rela_i""",
    "entmax15_topk": f"""{_TRANSFORMER} --criterion entmax_loss --output-transform entmax15
        --output-topk 8 --attention-enc entmax15 --attention-cross sparsemax""",
    "entmax_learned_alpha": f"""{_TRANSFORMER} --criterion entmax_loss --output-transform entmax
        --output-alpha 1.3 --attention entmax --attention-alpha-learnable""",
    "alpha_relu_rela_g": f"""{_TRANSFORMER} --criterion alpha_relu_loss
        --output-transform alpha_relu --output-tau weights --attention rela_g {_BLEU}""",
    "lstm_alpha_relu": f"""{_LSTM} --criterion alpha_relu_loss --output-transform alpha_relu
        --attention sparsemax""",
    "lm_entmax15_rela_i": f"""{_LM} --criterion entmax_loss --output-transform entmax15
        --attention rela_i""",
}


def run(command, data: Path, *arguments) -> str:
    """Run one of fairseq's commands in this process; return what it prints."""
    argv = ["fairseq", str(data), "--cpu", "--num-workers", "0", "--no-progress-bar"]
    argv += map(str, arguments)
    with mock.patch("sys.argv", argv), contextlib.redirect_stdout(io.StringIO()) as printed:
        command.cli_main()
    return printed.getvalue()


def train_until(updates: int, name: str, data: Path, save_dir: Path, *flags) -> Path:
    """Train a model of ``FLAGS`` up to update ``updates``; return its last checkpoint."""
    run(
        train,
        data,
        *FLAGS[name].split(),
        *("--dropout", 0, "--optimizer", "adam", "--lr", 0.02, "--clip-norm", 1, "--seed", 1),
        # Batches of eight: fairseq-fixed leaves out sentences beyond a multiple of eight.
        *("--batch-size", 8, "--max-update", updates, "--no-epoch-checkpoints"),
        *("--save-dir", save_dir, *flags),
    )
    return save_dir / "checkpoint_last.pt"


def unpack(frozen: Path, folder: Path) -> Path:
    """Decompress a frozen checkpoint into a folder; return its path."""
    path = folder / frozen.stem
    path.write_bytes(gzip.decompress(frozen.read_bytes()))
    return path


def results(name: str, data: Path, path: Path, folder: Path) -> dict[str, Any]:
    """Return the results of a checkpoint of the model; ``folder`` is for more training."""
    return {
        "probabilities": probabilities(data, path),
        "translations": [] if name.startswith("lm_") else translations(data, path),
        "more_training": more_training(name, data, path, folder),
    }


def probabilities(data: Path, path: Path) -> list[list[float]]:
    """Return the probabilities of all tokens at each teacher-forced step of the first sentence."""
    models, task = load_models([path], str(data))
    batch = next(iter(load_batches(task, models, "test", 1000)))
    row = batch["id"].tolist().index(0)
    length = int(batch["target"][row].ne(task.target_dictionary.pad()).sum())
    with torch.no_grad():
        output = models[0](**batch["net_input"])
    rows = models[0].get_normalized_probs(output, log_probs=False)[row, :length]
    return [[round(p, 9) for p in row] for row in rows.tolist()]


def translations(data: Path, path: Path) -> list[list]:
    """Return score and words of the best translation of each test sentence."""
    flags = (*_TRANSLATION.split(), "--beam", 3, "--max-len-b", 9, "--batch-size", 4)
    printed = run(generate, data, "--path", path, *flags)
    return [list(best) for _, (best,) in sorted(hypotheses(printed).items())]


def more_training(name: str, data: Path, path: Path, folder: Path) -> dict[str, float]:
    """Return the loss on the validation set, and τ, after a few more updates."""
    last = train_until(UPDATES + 5, name, data, folder, "--restore-file", path)
    state = load_checkpoint(last)
    return {
        "updates": state["optimizer_history"][-1]["num_updates"],
        "loss": float(state["extra_state"]["val_loss"]),
        **{key: tau.item() for key, tau in state["model"].items() if key.endswith(".tau")},
    }
