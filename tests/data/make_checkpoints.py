#!/usr/bin/env python3
"""Make the frozen checkpoints of one environment, and record their results.

    python tests/data/make_checkpoints.py set1-py310

Trains the models of ``tests/helpers/frozen_checkpoints.py`` for some updates on
``tests/data/bin`` (targets are the source words in reversed order, in capitals). The compressed
checkpoints and ``expected.json`` go to a folder of the given name beside this file. An existing
folder is never overwritten, because released checkpoints must always load; a later version that
saves something new gets another folder. ``--data`` made the data.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "helpers")]


def make_data() -> None:
    import toy

    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for split, count in (("train", 64), ("valid", 16), ("test", 8)):
            sentences = [rng.choices("abcdefghij", k=rng.randint(2, 5)) for _ in range(count)]
            sides = {"de": sentences, "en": [[w.upper() for w in s[::-1]] for s in sentences]}
            for language, lines in sides.items():
                text = "".join(" ".join(words) + "\n" for words in lines)
                (folder / f"{split}.{language}").write_text(text)
        made = toy.binarise(folder)
        texts = [f"--{split}pref={folder / split}.en" for split in ("train", "valid", "test")]
        dictionary = ("--srcdict", made / "dict.en.txt", "--only-source")  # of a language model
        toy.run("fairseq_cli.preprocess", *dictionary, *texts, "--destdir", made)
        (made / "preprocess.log").unlink()
        shutil.copytree(made, HERE / "bin")


def make_checkpoints(output: Path) -> None:
    import frozen_checkpoints as frozen

    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # a checkpoint stores its paths: these name no user's folder
        shutil.copytree(HERE / "bin", "bin")
        made = Path("made")
        made.mkdir()
        for name in frozen.FLAGS:
            path = frozen.train_until(frozen.UPDATES, name, Path("bin"), Path("checkpoints", name))
            expected[name] = frozen.results(name, Path("bin"), path, Path("more_training", name))
            (made / f"{name}.pt.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items())
        (made / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        shutil.copytree(made, output)
        os.chdir(HERE)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help="of the folder: SET-pyXYZ")
    what.add_argument("--data", action="store_true", help="make tests/data/bin instead")
    options = parser.parse_args()
    output = HERE / ("bin" if options.data else options.name)
    if output.exists():
        print(f"make_checkpoints.py: error: {output} is there, and is kept", file=sys.stderr)
        return 1
    if options.data:
        make_data()
    else:
        make_checkpoints(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
