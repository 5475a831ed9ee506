# CoNLL-SIGMORPHON 2018, task 1, about 1,000 training items a language, all 102 languages as in S2S.
# MAX_EPOCH should be a multiple of VALIDATE_EPOCHS: training after the last validation is lost.

SETTING=medium
ALL_LANGUAGES=102
VALIDATE_EPOCHS="${VALIDATE_EPOCHS:-10}"
MAX_EPOCH="${MAX_EPOCH:-60}"
source "$EXAMPLES/datasets/shared/sigmorphon2018.sh"
