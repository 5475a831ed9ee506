# IWSLT 2017, English to German.

SOURCE_LANG=en
TARGET_LANG=de
source "$EXAMPLES/datasets/shared/iwslt17_de_en.sh"
