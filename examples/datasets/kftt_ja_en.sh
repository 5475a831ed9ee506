# The Kyoto Free Translation Task, Japanese to English.

SOURCE_LANG=ja
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/kftt_ja_en.sh"
