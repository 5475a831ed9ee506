# The Kyoto Free Translation Task 1.0, Japanese and English; SOURCE_LANG and TARGET_LANG are set by
# the file that sources this one. Neubig: The Kyoto Free Translation Task.
# Home: http://www.phontron.com/kftt/
#
# As in S2S: 329,882 training pairs, 32,000 joint merges, at most 100,000 updates (paper). The
# choice of sets and tokens is ours (not stated).
# The corpus is published tokenised, Japanese by KyTea and English by Moses (data/tok). Training
# uses the sentences of 1 to 40 words (kyoto-train.cln); the other sets are kyoto-dev and
# kyoto-test. Scores are computed on tokens, without detokenising.
# The download is untested: address, names and layout are those that several public scripts use; no
# checksum has been published.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/kftt_ja_en.archives}"
CORPUS=()
for part in train.cln:train dev:valid test:test; do
  side="kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-${part%%:*}"
  CORPUS+=("${part#*:} text $side.$SOURCE_LANG $side.$TARGET_LANG")
done
TEXT_FLAGS=(--tokenized ja en)
TOKENIZER=space
SCORE_FLAGS=(--tokenize none)

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-100000}"
VALIDATE_UPDATES="${VALIDATE_UPDATES:-10000}"
source "$EXAMPLES/datasets/shared/sparse_seq2seq_mt.sh"
