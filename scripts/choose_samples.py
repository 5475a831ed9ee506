#!/usr/bin/env python3
"""The command ``fairseq-sparse mbr``, for a checkout that is not installed."""

from command_line import run

if __name__ == "__main__":
    run("mbr")
