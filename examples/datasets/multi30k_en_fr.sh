# Multi30k, task 1, English to French. Not run here; none of the papers uses it.

SOURCE_LANG=en
TARGET_LANG=fr
source "$EXAMPLES/datasets/shared/multi30k.sh"
