"""``python -m fairseq_sparse`` prints the folder to give to fairseq's ``--user-dir``.

With arguments, it runs the command ``fairseq-sparse``.
"""

import sys
from pathlib import Path

from fairseq_sparse.commands import cli


def main() -> int:
    if len(sys.argv) > 1:
        return cli.main()
    print(Path(__file__).resolve().parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
