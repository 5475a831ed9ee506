"""The page on the precision of the ops, made from the results of the sweep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional

from fairseq_sparse.files import write_text
from fairseq_sparse.measure.machine import describe_machine
from fairseq_sparse.tables.formats import format_table
from numerics import paths
from numerics.patterns import DTYPES, PATTERNS

_INTRODUCTION = """# How exact the mappings and losses are

Made by
`python scripts/numerics/sweep.py {options} --output docs/results/numerics.md`
with {versions}.

For each op {rows:,} rows of 1 to 262,144 logits were drawn, of these patterns: {patterns}. The
batches take turns over fp64, fp32, fp16 and bf16; a row is given to the op in its own dtype and in
all wider ones, so fp64 has the most rows and half precision the fewest.
The reference is computed with 50 digits (`mpmath`), by a method independent of the ops, and every
row's exact probabilities are checked to sum to 1 to 50 digits. Most rows have fewer than 18 logits,
and none has more than 1,500 distinct ones, because the reference is slow. The patterns do not
include thousands of equal logits just above the threshold: there p is accurate to 16 eps, as
`tests/ops/test_exact.py` checks.
`entmax 1.00781` is alpha = 1 + 2^-7; the numbers after alpha_relu are alpha and tau. With
`tensor`, alpha is a tensor and gets a gradient; `sort`, `partial` (beginning with 8 logits) and
`bisect` are other algorithms, whose threshold is not corrected for its rounding error, which all
entries of a large support have.

## What you may rely on

{claims}

## What is measured

- **eps** is the distance from 1 to the next number: 2^-52 in fp64, 2^-23 in fp32, 2^-10 in fp16,
  2^-7 in bf16. In half precision the ops compute in fp32 and round the result once, which alone is
  up to half an eps times the value.
- **p**: the largest |p - exact| of a row, over eps; for values above 1, which alpha-ReLU has, over
  eps times the value. The absolute error is what enters a sum and the gradient p - q, and what a
  threshold accurate to rounding guarantees.
- **large p**: the error of entries with at least the mean share of the mass, in units of the
  distance to the neighbouring number of the dtype. p is the power 1 / (alpha - 1) of a rounded
  difference, so near alpha = 1 it has the relative error of that many roundings. Entries near the
  threshold, whose p is small, may have any relative error.
- **sum**: |sum(p) - 1| over eps, of the returned p, added up without rounding.
- **wrong support**: the number of entries that are 0 and should not be, or the reverse (ignoring p
  too small for the dtype or for fp32), and the largest distance of such an entry from the
  threshold: |(alpha - 1) z - tau| over the eps of the dtype of the computation.
- **tau**: the error of `entmax_threshold`, over eps times max(1, |tau|).
- **gradient**: the error of a mapping's gradient, over eps times the largest incoming gradient and
  the largest factor p^(2 - alpha), or 1. Rows with a wrong support are left out: there the gradient
  of sparsemax jumps. **d alpha**: the error of the gradient of alpha (as a tensor), over eps times
  the sizes of its terms.
- **loss**: its error over eps of fp32 (fp64 for fp64 logits) times the largest of 1, the loss and
  the logits, because logits are subtracted from each other and their mean is only as exact as a sum
  in that dtype. **smoothed**: with label smoothing 0.1. **d loss**: the error of its gradient
  p - q, measured as for p.

Rows whose logits could overflow when added up (in fp32 from about 1e33 on) are checked only for
NaN and endless searches. So are rows with a NaN or +inf, which must give NaN, and rows of only
-inf, which must give zeros.
"""

_LIMITS = """Large numbers come from the steepness of the problem, not from an inexact search:

- Above alpha = 2, p has an infinite slope at the threshold: a logit within a rounding of it has p
  up to eps^(1 / (alpha - 1)), and the gradient of the mapping is unbounded.
- Between alpha = 1.5 and 2 the same holds for the factor p^(2 - alpha) in the gradients of the
  mapping and of alpha: within a rounding of the threshold they are accurate to
  eps^((2 - alpha) / (alpha - 1)), the cube root of eps at alpha = 1.75. The gradient of the loss,
  p - q, is not affected.
- The gradient of alpha is a sum of terms like p log(p), of both signs, which can nearly cancel,
  most of all in long rows.
- In alpha-ReLU, p and the loss have the relative error of (alpha - 1) z - tau, where digits cancel,
  times 1 / (alpha - 1).
- In fp16 a p below 6e-8 is 0, and so is its part of the gradient of the mapping.
- Triton's interpreter does not round to nearest in bf16: errors are up to 0.96 in those rows.
- The Triton kernels keep the threshold of fp32 logits in fp32. Where one logit is far above
  thousands of others in the support, each of these has the threshold's rounding error, and the
  largest p absorbs their sum: 10 eps were seen with 4,000 logits and alpha = 2.

**On a GPU** none of this was measured: "Triton" is its interpreter on a CPU. The compiled code
shows which figures carry over, and `scripts/compile_kernels.py` checks it: products are not fused
with sums, and divisions and square roots are correctly rounded, so for alpha = 1.5 and 2 the
roundings of p, tau, the gradients and alpha-ReLU's loss are as in the interpreter, but sums are
taken in another order. For any other alpha each power is exp2(e log2(x)): e log2(x) is rounded, and
exp2 is the GPU's approximate instruction in fp32 (two units in the last place; results below 2^-126
become 0), so a power has a relative error of about 2 eps + |e log2(x)| eps. p still sums to 1 as
exactly, because it is divided by the sum of these very powers. The figures that do not carry over
are those of p and of large p in fp32 for these alpha, and of the part of the loss, smoothed or not,
that is such a power of the total, which is near 1. Logarithms are approximate, too. fp64 is left to
PyTorch. Matrix products, in the ops on features and in attention, are those of the GPU: TF32 in
three parts for fp32 in rectified attention, and PyTorch's setting elsewhere."""


class Entry(NamedTuple):
    """The worst error of one kind, over some paths."""

    error: float
    path: str
    where: str
    rows: int
    total: float


# Prefixes of the quantities of a mapping with alpha as a tensor and by other algorithms, and their
# words in the tables.
_SEARCHED = {"": "", "tensor ": ", tensor"}
_OTHERS = {f"{name} ": f", {name}" for name in ("sort", "partial", "bisect")}
_VERSIONS = _SEARCHED | _OTHERS


class Figures:
    """The results of the sweep for one op."""

    def __init__(self, found: dict):
        self.op = found["op"]
        self.slowest = found["slowest"]
        self._worst: dict[tuple[str, str], dict[str, Entry]] = {}
        for quantity, dtype, path, rows, error, where, total in found["worst"]:
            entry = Entry(error, path, where, rows, total)
            self._worst.setdefault((quantity, dtype), {})[path] = entry

    def worst(self, quantity: str, dtype: str, backends: Optional[Iterable[str]] = None) -> Entry:
        """Return the worst error over all paths, or over the given ones."""
        found = self._worst.get((quantity, dtype), {})
        entries = [e for path, e in found.items() if backends is None or path in backends]
        worst = max(entries, key=lambda entry: entry.error, default=Entry(0, "", "", 0, 0))
        return worst._replace(rows=max((entry.rows for entry in entries), default=0))

    def quantities(self) -> list[str]:
        return list(dict.fromkeys(quantity for quantity, _ in self._worst))


def write(
    output: Path, folder: Path, rows: int, seed: int, ops: list[str], everything: bool
) -> None:
    """Write the page.

    Args:
        everything: whether ``ops`` are all that can be measured.

    Raises:
        OSError: the figures of an op are missing, or the page cannot be written.
    """
    names = shlex.join(ops)
    figures = []
    for op in ops:
        file = folder / f"{op.replace(' ', '_')}_{rows}_{seed}.json"
        figures.append(Figures(json.loads(file.read_text(encoding="utf-8"))))
    mappings = [f for f in figures if f.op.startswith(("entmax", "alpha_relu"))]
    machine = describe_machine()
    parts = [
        _INTRODUCTION.format(
            rows=rows,
            options=f"--rows {rows} --seed {seed}" + ("" if everything else f" --ops {names}"),
            versions=f"torch {machine['torch']} on {machine['hardware']}",
            patterns=", ".join(name.replace("_", " ") for name in PATTERNS),
            claims=claims(figures),
        ),
        "## Mappings\n",
        _mapping_table(mappings) + "\n",
        "## Losses and gradients\n",
        _loss_table(mappings) + "\n",
        _LIMITS + "\n",
        "## Ops on features\n",
        _feature_table([f for f in figures if f not in mappings]) + "\n",
        "## Backends: entmax in fp32, 1.3 <= alpha <= 2\n",
        "\n".join(f"- **{name}**: {text}." for name, text in paths.DESCRIPTIONS.items()) + "\n",
        _backend_table([f for f in mappings if is_moderate(f.op)]),
    ]
    write_text(output, "\n".join(parts) + "\n")


def is_moderate(op: str) -> bool:
    """Return whether the claims are about an op: alpha-entmax, 1.3 <= alpha <= 2."""
    return op.startswith("entmax") and 1.3 <= float(op.split()[1]) <= 2


def claims(figures: list[Figures]) -> str:
    """Return the statements that hold for every drawn row."""
    nan = sum(
        f.worst(quantity, dtype).total
        for f in figures
        for quantity in f.quantities()
        if quantity.endswith(("nan", "infinite"))
        for dtype in DTYPES
    )
    slowest = max(f.slowest for f in figures)
    entmax = [f for f in figures if f.op.startswith("entmax") and f.op != "entmax 3"]
    moderate = [f for f in entmax if is_moderate(f.op)]
    half = _worst(entmax, "p", "fp16", "bf16")
    far = _worst(entmax, "distance", *DTYPES)
    lines = [
        "With the default algorithm, p of alpha-entmax, 1.3 <= alpha <= 2, is accurate to "
        f"{_worst(moderate, 'p', 'fp32'):.1f} eps in fp32 and "
        f"{_worst(moderate, 'p', 'fp64'):.1f} in fp64 in these rows, the gradient "
        f"of its loss to {_worst(moderate, 'loss gradient', 'fp32'):.1f} and "
        f"{_worst(moderate, 'loss gradient', 'fp64'):.1f}. fp64 logits are "
        "searched entirely in fp64. With the others (sort, partial, bisect) p is accurate to "
        f"{_worst(moderate, 'p', 'fp32', 'fp64', prefixes=_OTHERS):.0f} eps.",
        "In fp16 and bf16, p of alpha-entmax, alpha <= 2, is accurate to "
        f"{half:.2f} eps, the error of a single rounding.",
        f"p sums to 1 within {_worst(entmax, 'sum', 'fp32'):.1f} eps in fp32.",
        f"The support is exact, except for logits within {far:.2g} eps of the threshold; with the "
        f"other algorithms, within {_worst(entmax, 'distance', *DTYPES, prefixes=_OTHERS):.2g}.",
        f"Rows with an unexpected NaN or infinity, or without an expected one: "
        f"{nan:.0f}. Every solver terminated; the slowest batch took {slowest:.1f} s.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _worst(
    figures: list[Figures], quantity: str, *dtypes: str, prefixes: Iterable[str] = _SEARCHED
) -> float:
    """Return the largest error of the mappings, by the default algorithm or by others."""
    return max(f.worst(p + quantity, d).error for f in figures for p in prefixes for d in dtypes)


def _mapping_table(figures: list[Figures]) -> str:
    header = ["mapping", "dtype", "rows", "p", "large p", "sum", "wrong support", "worst p"]
    rows = []
    for f in figures:
        for prefix, version in _VERSIONS.items():
            title = f.op + version
            if prefix + "p" not in f.quantities():
                continue
            for dtype in DTYPES:
                p = f.worst(prefix + "p", dtype)
                wrong = _most(f, prefix + "support", dtype)
                far = f.worst(prefix + "distance", dtype).error
                rows.append(
                    [
                        title,
                        dtype,
                        f"{f.worst(prefix + 'nan', dtype).rows:,}",
                        _number(p.error),
                        _number(f.worst(prefix + "ulp", dtype).error),
                        _number(f.worst(prefix + "sum", dtype).error)
                        if prefix + "sum" in f.quantities()
                        else "",
                        f"{wrong:.0f}, within {_number(far)}" if wrong else "0",
                        f"{p.where} ({p.path})" if p.where else "",
                    ]
                )
    return format_table(header, rows)


def _most(f: Figures, quantity: str, dtype: str) -> float:
    """Return the largest total of any single path."""
    entries = f._worst.get((quantity, dtype), {}).values()
    return max((entry.total for entry in entries), default=0)


_LOSS_COLUMNS = {
    "tau": "tau",
    "gradient": "gradient",
    "alpha gradient": "d alpha",
    "loss": "loss",
    "loss gradient": "d loss",
    "loss 0.1": "smoothed loss",
    "loss 0.1 gradient": "d smoothed loss",
}


def _loss_table(figures: list[Figures]) -> str:
    rows = []
    for f in figures:
        for dtype in DTYPES:
            cells = [f.op, dtype]
            for quantity in _LOSS_COLUMNS:
                unbounded = f.op == "entmax 3" and quantity == "gradient"
                missing = quantity not in f.quantities() or unbounded
                cells.append("" if missing else _number(f.worst(quantity, dtype).error))
            rows.append(cells)
    return format_table(["mapping", "dtype", *_LOSS_COLUMNS.values()], rows)


def _feature_table(figures: list[Figures]) -> str:
    rows = [
        [quantity, *(_number(f.worst(quantity, dtype).error) for dtype in DTYPES)]
        for f in figures
        for quantity in f.quantities()
    ]
    return format_table(["quantity", *DTYPES], rows)


def _backend_table(figures: list[Figures]) -> str:
    rows = []
    for path in paths.DESCRIPTIONS:
        entries = {
            quantity: [f.worst(quantity, "fp32", [path]) for f in figures]
            for quantity in ("nan", "p", "sum", "loss", "loss gradient")
        }
        count = sum(entry.rows for entry in entries.pop("nan"))
        worst = [_number(max(e.error for e in found)) for found in entries.values()]
        rows.append([path, f"{count:,}", *worst])
    return format_table(["backend", "rows", "p", "sum", "loss", "d loss"], rows)


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}" if value < 1e5 else f"{value:.1e}"
