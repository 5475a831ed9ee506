"""Repetition and diversity of samples."""

from __future__ import annotations

from collections.abc import Sequence

# The windows over which Welleck et al. (2020) and Martins et al. (2020) average repetition.
WINDOWS = (16, 32, 128, 512)
ORDERS = (1, 2, 3, 4)


def repetition(tokens: Sequence[str], window: int) -> float:
    """Return the share of tokens that are among the ``window`` tokens before them.

    This is rep/l of Welleck et al. (2020, arXiv 1908.04319, section 6.1) and REP of Martins et al.
    (2020, arXiv 2004.02644). They compare each *predicted* token with the human text before it;
    here, that text is the sample itself. The value for human text is the one to aim at.
    """
    last: dict[str, int] = {}
    repeated = 0
    for place, token in enumerate(tokens):
        repeated += place - last.get(token, place - window - 1) <= window
        last[token] = place
    return repeated / len(tokens) if tokens else 0.0


def distinct(tokens: Sequence[str], order: int) -> float:
    """Return the number of different n-grams of a sample over its number of tokens.

    This is distinct-n as in the code of Martins et al. (2020), which averages it over the samples.
    """
    return len(set(_ngrams(tokens, order))) / len(tokens) if tokens else 0.0


def repeated_ngrams(tokens: Sequence[str], order: int) -> float:
    """Return the share of n-grams that repeat an earlier one: seq-rep-n of Welleck et al."""
    ngrams = _ngrams(tokens, order)
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def summarize(samples: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute all statistics of the samples of one system.

    Args:
        samples: the tokens of each.

    Returns:
        ``samples``, ``tokens``, ``vocabulary`` (different tokens), ``repetition_L``,
        ``repetition`` (the mean over the windows L), ``seq_rep_4`` and ``distinct_N``. Repetition
        is of all tokens together; seq-rep-4 is the mean over the samples of four tokens or more,
        distinct-n that over the samples that are not empty; 0 without any.
    """
    tokens = sum(map(len, samples))
    windows = {
        f"repetition_{window}": sum(len(sample) * repetition(sample, window) for sample in samples)
        / max(tokens, 1)
        for window in WINDOWS
    }
    means = {"seq_rep_4": [repeated_ngrams(sample, 4) for sample in samples if len(sample) >= 4]}
    means |= {
        f"distinct_{order}": [distinct(sample, order) for sample in samples if sample]
        for order in ORDERS
    }
    return {
        "samples": len(samples),
        "tokens": tokens,
        "vocabulary": len({token for sample in samples for token in sample}),
        **windows,
        "repetition": sum(windows.values()) / len(windows),
        **{name: sum(values) / max(len(values), 1) for name, values in means.items()},
    }


def table(rows: Sequence[dict]) -> tuple[list[str], list[list[object]]]:
    """Return header and rows of a table of summaries, each with its ``name``."""
    header = ["samples of", "number", "tokens", "vocabulary", "repetition (%)", "seq-rep-4 (%)"]
    header += [f"distinct-{order}" for order in ORDERS]
    lines = []
    for row in rows:
        counts = [row[key] for key in ("name", "samples", "tokens", "vocabulary")]
        shares = [f"{100 * row[key]:.2f}" for key in ("repetition", "seq_rep_4")]
        lines.append([*counts, *shares, *(f"{row[f'distinct_{order}']:.3f}" for order in ORDERS)])
    return header, lines


def _ngrams(tokens: Sequence[str], order: int) -> list[tuple[str, ...]]:
    return list(zip(*(tokens[start:] for start in range(order)), strict=False))
