# IWSLT 2017, German to English.

SOURCE_LANG=de
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/iwslt17_de_en.sh"
