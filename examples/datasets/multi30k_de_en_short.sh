# Multi30k, German to English, to test generalisation to longer sentences: trained on the pairs with
# up to TRAIN_TOKENS tokens per side (26,963 of 29,000 for 20), scored on the usual test set and on
# the remaining training pairs.

SOURCE_LANG=de
TARGET_LANG=en
TRAIN_TOKENS="${TRAIN_TOKENS:-20}"
TEXT_FLAGS=(--max-tokens "$TRAIN_TOKENS" --long-test)
source "$EXAMPLES/datasets/shared/multi30k.sh"
