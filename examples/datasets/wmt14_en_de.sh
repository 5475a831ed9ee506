# WMT 2014, English to German, as in SUE: 4.5 million training pairs.
#
#   setting            value                                from
#   BPE                40,000 merges, joint                 paper
#   validation, test   newstest2013, newstest2014           not stated, ours
#   model              d 512, 8 heads, 6 layers, feed-      paper
#                      forward 2048, one matrix for all
#                      embeddings
#
# shared/wmt14.sh lists the corpora and the pairs that are left out. Train with --settings sue. Not
# run here.

TARGET_LANG=de
VALID_YEARS=2013
BPE_MERGES="${BPE_MERGES:-40000}"
source "$EXAMPLES/datasets/shared/wmt14.sh"
