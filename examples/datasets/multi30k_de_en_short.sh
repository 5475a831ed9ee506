# Multi30k, German to English, to see how models generalise to length: trained on the pairs with up to
# TRAIN_TOKENS tokens a side (13,053 of 29,000 with 12), scored on the whole test set and on the
# sentences that are longer (407 of 1,000 in German).

SOURCE_LANG=de
TARGET_LANG=en
TRAIN_TOKENS="${TRAIN_TOKENS:-12}"
TEXT_FLAGS=(--max-tokens "$TRAIN_TOKENS")
SCORE_FLAGS=(--longer-than "$TRAIN_TOKENS")
source "$EXAMPLES/datasets/shared/multi30k.sh"
