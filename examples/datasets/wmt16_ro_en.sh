# WMT 2016, Romanian to English.

SOURCE_LANG=ro
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/wmt16_ro_en.sh"
