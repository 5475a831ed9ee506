# WMT 2014, English to German, with 40,000 joint merges as in SUE; 4.5 million training pairs before
# cleaning. Validation: newstest2013 (which SUE took is not verified).
# The paper's BLEU was not at hand. Not run here.

TARGET_LANG=de
VALID_YEARS=2013
BPE_MERGES="${BPE_MERGES:-40000}"
source "$EXAMPLES/datasets/shared/wmt14.sh"
