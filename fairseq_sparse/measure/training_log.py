"""The numbers in a log of fairseq-train, in its formats ``json``, ``simple`` and ``tqdm``."""

import csv
import json
import re
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import AnalysisError

# "... | INFO | train_inner | {...}"; or "INFO:train_inner:{...}", if an optional package was
# missing when fairseq set up its log.
_JSON_LINE = re.compile(r"(?: \| |:)(?P<tag>\w+)(?: \| |:)(?P<json>\{\".*\})\s*$")
# The other formats. Lines written by --log-file have no tag, in any format.
_BARE_JSON_LINE = re.compile(r"^(?P<json>\{\"epoch\": .*\})\s*$")
_EPOCH_LINE = re.compile(
    r"(?:^|(?: \| |:)\w+(?: \| |:))epoch (?P<epoch>\d+) \| (?P<fields>.*\bnum_updates \d.*)$"
)
_STEP_LINE = re.compile(r"\bepoch (?P<epoch>\d+):\s+\d+ / \d+ (?P<fields>\w+=.*)$")
_SUBSET = re.compile(r"valid on '(\w+)' subset")
_SIZE = re.compile(r"num\. shared model params: [\d,]+ \(num\. trained: (?P<parameters>[\d,]+)\)")

Records = list[tuple[str, dict[str, float]]]


def log_text(path: Path) -> str:
    """Return the text of a log; a killed process may have left an incomplete character."""
    return path.read_text(encoding="utf-8", errors="replace")


def read_log(path: Path) -> Records:
    """Read a log as :func:`read_records` does, or the validations in a published training.tsv.

    Raises:
        AnalysisError: it has no numbers.
        OSError: it cannot be read.
    """
    text = log_text(path)
    if path.suffix == ".tsv":
        rows = csv.DictReader(text.splitlines(), delimiter="\t")
        try:
            records = [("valid", {k: float(v) for k, v in row.items() if v}) for row in rows]
        except (TypeError, ValueError, csv.Error) as error:  # TypeError: more cells than names
            raise AnalysisError(f"{path}: not a table of numbers ({error})") from error
    else:
        records = read_records(text)
    if not records:
        raise AnalysisError(
            f"{path}: no numbers of a training; give what fairseq-train printed, or its --log-file"
        )
    return records


def read_records(log: str) -> Records:
    """Read the lines with numbers in the text of a log.

    Returns:
        For each line its tag and its numbers, without the tag in front of each name. The tag is
        ``train_inner`` (since the last such line), ``train`` or ``valid`` (at the end of an epoch),
        or ``model``, once a start, with the number of ``parameters``. Updates from which training
        went back are left out.
    """
    records = []
    for line in log.split("\n"):
        tag, fields = _read_line(line)
        if tag:
            numbers = {name: _number(value) for name, value in fields.items()}
            known = {name: value for name, value in numbers.items() if value is not None}
            records.append((tag, known))
    return _without_lost_updates(records)


def _without_lost_updates(records: Records) -> Records:
    """Leave out what was trained again, or for nothing: where the updates fall, training went back
    to an earlier checkpoint, or began anew, with the log of the first try in front."""
    kept: Records = []
    last: dict[str, float] = {}
    for tag, numbers in records:
        updates = numbers.get("num_updates")
        if updates is not None:
            if updates < last.get(tag, 0):
                kept = [(t, n) for t, n in kept if n.get("num_updates", 0) < updates]
                last = {}
            last[tag] = updates
        kept.append((tag, numbers))
    return kept


def _read_line(line: str) -> tuple[str, dict[str, Any]]:
    """Return the tag and the fields of a line; no tag if it has no numbers."""
    if match := _JSON_LINE.search(line) or _BARE_JSON_LINE.search(line):
        try:
            fields = json.loads(match["json"])
        except ValueError:  # cut off when the process was killed
            return "", {}
        tag = match.groupdict().get("tag")
        if tag is None:
            names = [name for name in fields if name.endswith("_num_updates")]
            tag = names[0].removesuffix("_num_updates") if names else "train_inner"
        return tag, {name.removeprefix(f"{tag}_"): value for name, value in fields.items()}
    if match := _EPOCH_LINE.search(line):
        subset = _SUBSET.search(match["fields"])
        fields = dict(part.rsplit(" ", 1) for part in match["fields"].split(" | ") if " " in part)
        return subset[1] if subset else "train", {"epoch": match["epoch"], **fields}
    if match := _STEP_LINE.search(line):
        fields = dict(part.split("=", 1) for part in match["fields"].split(", ") if "=" in part)
        return "train_inner", {"epoch": match["epoch"], **fields}
    if match := _SIZE.search(line):
        return "model", {"parameters": match["parameters"].replace(",", "")}
    return "", {}


def curves(records: Records, tag: str) -> dict[str, list[Optional[float]]]:
    """Return the numbers of one tag over the training.

    An update that was repeated after an interruption counts once, by its last record.

    Args:
        tag: ``train_inner``, ``train`` or ``valid``.

    Returns:
        ``updates``, ascending, and a list of the same length for each other name, with None where
        a record does not have it. Without records of this tag, only ``updates``, empty.
    """
    points = {
        int(numbers["num_updates"]): numbers
        for found, numbers in records
        if found == tag and "num_updates" in numbers
    }
    updates = sorted(points)
    names = dict.fromkeys(name for update in updates for name in points[update])
    names.pop("num_updates", None)
    columns = {name: [points[update].get(name) for update in updates] for name in names}
    return {"updates": updates, **columns}


def training_seconds(records: Records) -> list[tuple[int, float]]:
    """Return pairs of updates and seconds of training without validation, ascending.

    fairseq logs whole seconds, so the totals of finished epochs are used, and ``train_inner`` only
    after the last of them. Time is assumed to be linear between two points.
    """
    points, seconds = [(0, 0.0)], 0.0
    epochs = {n["epoch"]: n for tag, n in records if tag == "train" and "train_wall" in n}
    for numbers in (epochs[epoch] for epoch in sorted(epochs)):
        seconds += numbers["train_wall"]
        points.append((int(numbers["num_updates"]), seconds))
    inner = {
        n.get("num_updates", 0): n.get("train_wall", 0.0) for t, n in records if t == "train_inner"
    }
    for updates in sorted(update for update in inner if update > points[-1][0]):
        seconds += inner[updates]
        points.append((int(updates), seconds))
    return points


def validation_curve(records: Records, metric: str) -> dict[str, list[float]]:
    """Return a metric of the validation set (``bleu``, ``accuracy``, ...) over the training.

    Returns:
        ``updates``, ``hours`` of training, and ``values``, of the same length; empty if not logged.
    """
    import numpy as np

    curve = curves(records, "valid")
    known = [
        (updates, value)
        for updates, value in zip(curve["updates"], curve.get(metric, []), strict=False)
        if value is not None
    ]
    updates = [updates for updates, _ in known]
    points = training_seconds(records)
    hours = np.interp(updates, *zip(*points, strict=True)) / 3600
    return {"updates": updates, "hours": hours.tolist(), "values": [value for _, value in known]}


def still_improving(records: Records) -> Optional[str]:
    """Return the metric that chose the best checkpoint if it was best in the last tenth of the
    validations, so that a longer training might have gained; else None.

    fairseq logs the best value so far from the second validation on.
    """
    curve = curves(records, "valid")
    for name in curve:
        metric = name.removeprefix("best_")
        if metric != name and metric in curve:
            values, best = curve[metric], curve[name][-1]
            late = len(values) - max(1, round(len(values) / 10))
            return metric if best in values[late:] and best not in values[:late] else None
    return None


def threshold_curve(records: Records) -> dict[str, list[Optional[float]]]:
    """Return the output's threshold and the mean norm of its logits over the training.

    Returns:
        ``updates``, ``tau`` and ``logit_norm``, of the same length. Only ``entmax_loss`` and
        ``alpha_relu_loss`` log them; otherwise all are empty.
    """
    known = [(tag, numbers) for tag, numbers in records if "logit_norm" in numbers]
    # Prefer lines within epochs; if --log-interval exceeds an epoch's updates, there are none.
    tag = "train_inner" if any(tag == "train_inner" for tag, _ in known) else "train"
    curve = curves(known, tag)
    nothing = [None] * len(curve["updates"])
    return {name: curve.get(name, nothing) for name in ("updates", "tau", "logit_norm")}


def _number(value: Any) -> Optional[float]:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
