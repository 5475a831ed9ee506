"""``python -m fairseq_sparse`` prints the folder to give to fairseq's ``--user-dir``."""

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).resolve().parent)
