# WMT 2016, English to Romanian.

SOURCE_LANG=en
TARGET_LANG=ro
source "$EXAMPLES/datasets/shared/wmt16_ro_en.sh"
