"""Texts about single sentences: the alternatives at each step, and the tree of translations."""

from __future__ import annotations

from typing import Any


def alternatives_text(sentence: dict[str, Any]) -> str:
    """Format one sentence of ``find_alternatives``; ``>`` marks the given token, ``!`` one with
    p = 0."""
    whole = "p = 0" if sentence["log_p"] is None else f"log p = {sentence['log_p']:.2f}"
    model = ", ".join(dict.fromkeys((sentence["name"], sentence["output"])))
    lines = [
        f"Sentence {sentence['sentence']} of {sentence['subset']}, {model}, "
        f"given its {sentence['given']}: {whole}; {sentence['values']}",
        f"source  {sentence['source']}",
        f"target  {sentence['target']}",
    ]
    for number, step in enumerate(sentence["steps"], start=1):
        lines.append(f"\n{number:>3}  {_summary(step)}")
        width = max(len(entry["token"]) for entry in step["alternatives"])
        for position, entry in enumerate(step["alternatives"], start=1):
            note = _remark(entry, position)
            mark = " " if not note else "!" if entry["rank"] is None else ">"
            value = number_text(entry["p"])
            lines.append(f"   {mark} {entry['token']:<{width}}  {value:<5}  {note}".rstrip())
        if step["left_out"]:
            together = number_text(step["left_out_p"])
            lines.append(f"     {step['left_out']:,} more, together {together}")
    return "\n".join(lines)


def number_text(p: float) -> str:
    """Format a probability so that only an exact 0 or 1 reads as 0 or 1."""
    if p == 0:
        return "0"
    if 0.9995 <= p < 1.0005 and p != 1:
        return ">.999" if p < 1 else ">1"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def tree_text(tree: dict[str, Any], min_prob: float = 0.0) -> str:
    """Return a tree of ``grow`` with one node per line, indented by depth; ``...`` marks what is
    left out: nodes with a total probability below ``min_prob``, or beyond the tree's limits."""
    lines: list[str] = []

    def add_children(node: dict[str, Any], depth: int) -> None:
        shown = [child for child in node["children"] if child["total"] >= min_prob]
        for child in shown:
            end = "" if child["expanded"] else " ..."
            if child["token"] == tree["eos"]:
                end = f"  (in all {child['total']:.4g})"
            lines.append(f"{'  ' * depth}{child['token']} {number_text(child['probability'])}{end}")
            add_children(child, depth + 1)
        if len(shown) < len(node["children"]):
            lines.append(f"{'  ' * depth}... {len(node['children']) - len(shown)} more")

    add_children(tree["root"], 0)
    return "\n".join(lines)


def _summary(step: dict[str, Any]) -> str:
    count = step["nonzeros"]
    text = f"{count:,} {'token' if count == 1 else 'tokens'} with p > 0"
    return text if abs(step["prob_sum"] - 1) < 1e-3 else f"{text}, Σp = {step['prob_sum']:.3f}"


def _remark(entry: dict[str, Any], position: int) -> str:
    if not entry["given"]:
        return ""
    if entry["rank"] is None:
        return "given, impossible"
    return "given" if entry["rank"] == position else f"given, rank {entry['rank']:,}"
