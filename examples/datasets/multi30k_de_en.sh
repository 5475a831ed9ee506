# Multi30k, task 1, German to English. The README has the results of our runs.

SOURCE_LANG=de
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/multi30k.sh"
