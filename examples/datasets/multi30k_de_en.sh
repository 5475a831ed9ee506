# Multi30k, task 1, German to English. Run here, see the README for the results.

SOURCE_LANG=de
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/multi30k.sh"
