# CoNLL-SIGMORPHON 2018, task 1, about 1,000 training items a language.

SETTING=medium
case "$CONFIG" in
  cpu) MAX_EPOCH="${MAX_EPOCH:-20}" ;;
  gpu) MAX_EPOCH="${MAX_EPOCH:-60}" ;;
esac
source "$EXAMPLES/datasets/shared/sigmorphon2018.sh"
