# CoNLL-SIGMORPHON 2018, task 1, about 10,000 training items a language.

SETTING=high
case "$CONFIG" in
  cpu) MAX_EPOCH="${MAX_EPOCH:-10}" ;;
  gpu) MAX_EPOCH="${MAX_EPOCH:-30}" ;;
esac
source "$EXAMPLES/datasets/shared/sigmorphon2018.sh"
