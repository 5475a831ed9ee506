# Multi30k, task 1: 29,000 / 1,014 / 1,000 sentence pairs of image descriptions; SOURCE_LANG and
# TARGET_LANG are set by the file that sources this one.
# Elliott, Frank, Sima'an, Specia: Multi30K: Multilingual English-German Image Descriptions (2016);
# for French: Elliott et al.: Findings of the Second Shared Task on Multimodal Machine Translation
# and Multilingual Image Description (2017). Home: https://github.com/multi30k/dataset

BASE_URL="${BASE_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}"
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/multi30k.archives}"
RAW_NAMES="[.]($SOURCE_LANG|$TARGET_LANG)[.]gz\$"
TRAIN_PREFIX=train
VALID_PREFIX=val
TEST_PREFIX=test_2016_flickr
BPE_MERGES="${BPE_MERGES:-8000}"
source "$EXAMPLES/datasets/shared/small_corpus.sh"
