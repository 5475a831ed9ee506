# The Kyoto Free Translation Task, English to Japanese.

SOURCE_LANG=en
TARGET_LANG=ja
source "$EXAMPLES/datasets/shared/kftt_ja_en.sh"
