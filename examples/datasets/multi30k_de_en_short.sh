# Multi30k, German to English, to see how models generalise to length: trained on the pairs with up to
# TRAIN_TOKENS tokens a side (26,963 of 29,000 with 20), scored on the usual test set and on the other
# pairs of the training text.

SOURCE_LANG=de
TARGET_LANG=en
TRAIN_TOKENS="${TRAIN_TOKENS:-20}"
TEXT_FLAGS=(--max-tokens "$TRAIN_TOKENS" --long-test)
source "$EXAMPLES/datasets/shared/multi30k.sh"
