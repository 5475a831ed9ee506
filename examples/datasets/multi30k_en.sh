# The English side of Multi30k, task 1, for a language model: 29,000 / 1,014 / 1,000 descriptions of
# images, one sentence a text. For the source see shared/multi30k.sh.

BASE_URL="${BASE_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}"
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/multi30k.archives}"
RAW_NAMES='[.]en[.]gz$'
TEXT_FLAGS=(--train train.en.gz --valid val.en.gz --test test_2016_flickr.en.gz)
BPE_MERGES="${BPE_MERGES:-4000}"
TOKENS_PER_SAMPLE=256
SAMPLE_BREAK_MODE=eos
CONTEXT_WINDOW=0
PROMPTS=()
source "$EXAMPLES/datasets/shared/language_model.sh"
