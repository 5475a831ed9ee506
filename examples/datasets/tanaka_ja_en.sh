# Japanese to English: 50,000 / 500 / 500 pairs of 4 to 16 words from the Tanaka corpus (CC BY 2.0
# FR). The publishers tokenised them with KyTea and Stanford's tokeniser and lower-cased them;
# scores are computed on these tokens. Home: https://github.com/odashi/small_parallel_enja

SOURCE_LANG=ja
TARGET_LANG=en
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/tanaka_ja_en.archives}"
TRAIN_PREFIX=train
VALID_PREFIX=dev
TEST_PREFIX=test
TEXT_FLAGS=(--tokenized ja en)
TOKENIZER=space
SCORE_FLAGS=(--tokenize none)

BPE_MERGES="${BPE_MERGES:-4000}"
source "$EXAMPLES/datasets/shared/small_corpus.sh"
