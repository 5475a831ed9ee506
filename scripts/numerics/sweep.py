#!/usr/bin/env python3
"""Errors of mappings, losses and their gradients against 50-digit arithmetic, over many rows.

Draws rows of logits of every pattern, of 1 to 262,144 entries, in fp64, fp32, fp16 and bf16, sends
them through every path of the ops on a CPU, and writes the worst errors as a page. The results of
each op are kept as soon as it is done, so that the same command does not measure it again, unless
the ops, the measurement or PyTorch have changed. An op takes about 3 minutes with 100,000 rows.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import exit_status, output_file, positive, script_parser, seed

# alpha; 1.05, 1.1 and 1.3 are not exact in fp32
ENTMAX = (1.0078125, 1.05, 1.1, 1.3, 1.5, 1.75, 2.0, 3.0)
# alpha and tau
ALPHA_RELU = ((1.1, 0.3), (1.5, 0.3), (2.0, -0.7))
OPS = {f"entmax {alpha:g}": (alpha,) for alpha in ENTMAX}
OPS |= {f"alpha_relu {alpha:g} {tau:g}": (alpha, tau) for alpha, tau in ALPHA_RELU}
OPS |= {"linear losses": (), "RMSNorm": ()}
WIDER = {
    "fp64": ("fp64",),
    "fp32": ("fp32", "fp64"),
    "fp16": ("fp16", "fp32", "fp64"),
    "bf16": ("bf16", "fp32", "fp64"),
}
# Triton's interpreter takes about a tenth of a second per row.
TRITON_BATCHES, TRITON_ROWS, TRITON_SIZE = 61, 2, 5000
# Seconds after which a search counts as endless; no batch takes that long.
HANGS = 600


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--rows", type=positive, default=2000, help="rows of logits for each op (default: 2000)"
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the rows (default: 1)")
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=OPS,
        default=list(OPS),
        metavar="NAME",
        help=f"what to measure (default: all of {', '.join(OPS)})",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(tempfile.gettempdir()) / f"numerics-{os.getuid()}",
        metavar="FOLDER",
        help="where each op's figures are kept (default: a folder for temporary files)",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="the page, in Markdown (default: none)"
    )
    return parser.parse_args(arguments)


def measure_rows(name: str, rows: int, first: int) -> dict:
    """Measure the worst errors of one mapping with its losses."""
    import numpy as np
    from tqdm import tqdm

    from numerics import measures, paths, patterns

    op = measures.Entmax(*OPS[name]) if "entmax" in name else measures.AlphaReLU(*OPS[name])
    recorder = measures.Recorder()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder, tqdm(total=rows, desc=name) as progress:
        libraries = paths.libraries(Path(folder))
        for number, batch in enumerate(patterns.batches(rows, op.alpha, first)):
            faulthandler.dump_traceback_later(HANGS, exit=True)
            draw = np.random.default_rng([first, number])
            # Skip the gradient of an alpha that is not exact in fp32.
            learned = op.sums_to_one and number % 3 == 0 and np.float32(op.alpha) == op.alpha
            truth = measures.Exact(batch.logits, op, draw, learned)
            for dtype in WIDER[batch.dtype]:
                z = batch.logits.to(patterns.DTYPES[dtype])
                where = f"{batch.pattern}, {z.size(1):,}"
                for path in paths_of(dtype, number, z.size(1), libraries):

                    def record(quantity, found, path=path, dtype=dtype, where=where):
                        recorder.add((quantity, dtype, path), found, where)

                    start = time.perf_counter()
                    rows_of = slice(0, TRITON_ROWS if path == paths.TRITON else None)
                    with paths.taken(path, libraries.get(path)):
                        op.measure(z[rows_of], truth.some(rows_of), record)
                    if path != paths.TRITON:
                        slowest = max(slowest, time.perf_counter() - start)
            progress.update(len(batch.logits))
    faulthandler.cancel_dump_traceback_later()
    return {"slowest": slowest, "worst": recorder.as_lists()}


def paths_of(dtype: str, number: int, size: int, libraries: dict) -> list[str]:
    from numerics import paths

    found = [paths.PYTORCH]
    if dtype != "fp64":
        # 5 and 12 have no common divisor, so that these paths get every pattern.
        others = libraries if number % 5 == 0 else ()
        found = [paths.COMPILED, *others, *found]
        if number % TRITON_BATCHES == 0 and size <= TRITON_SIZE and paths.has_triton():
            found.append(paths.TRITON)
    return found


def code_digest() -> str:
    """Return a digest of all that the figures depend on: PyTorch, the ops and the measurement."""
    import torch

    from fairseq_sparse import ops

    digest = hashlib.sha256(torch.__version__.encode())
    for folder in (Path(ops.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".c", ".h") and path.name != "page.py":
                digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    args = parse_arguments(arguments)
    import torch

    torch.set_num_threads(1)
    from fairseq_sparse.files import read_json, write_json
    from numerics import features, page

    if args.output is not None and not any(map(page.is_moderate, args.ops)):
        needed = " or ".join(filter(page.is_moderate, OPS))
        print(f"sweep.py: error: --output: its claims need --ops {needed}", file=sys.stderr)
        return 2
    args.results.mkdir(parents=True, exist_ok=True)
    kept = {"rows": args.rows, "seed": args.seed, "code": code_digest()}
    for name in args.ops:
        file = args.results / f"{name.replace(' ', '_')}_{args.rows}_{args.seed}.json"
        if file.exists() and kept.items() <= read_json(file).items():
            continue
        measure = {"linear losses": features.linear_losses, "RMSNorm": features.norms}.get(name)
        if measure is None:
            found = measure_rows(name, args.rows, args.seed)
        else:
            found = measure(args.rows, args.seed)
        write_json(file, {"op": name, **kept, **found})
    if args.output is not None:
        everything = args.ops == list(OPS)
        page.write(args.output, args.results, args.rows, args.seed, args.ops, everything)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
