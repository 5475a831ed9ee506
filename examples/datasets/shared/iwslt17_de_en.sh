# IWSLT 2017, talks, German and English; the file that sources this one sets SOURCE_LANG and
# TARGET_LANG.
# Cettolo et al.: Overview of the IWSLT 2017 Evaluation Campaign. Home: https://wit3.fbk.eu
#
# As in S2S: 206,112 training pairs, 32,000 joint merges, at most 100,000 updates (paper).
# Train: WIT3's 2017-01-trnted. Validation: dev2010 and tst2010 to tst2015. Test: tst2017. S2S
# does not state its sets; ours are those of fairseq's prepare-iwslt17-multilingual.sh and of
# scripts/clean_iwslt.py in S7, later code of the authors (github.com/deep-spin/S7). Tokens
# are Moses' (not stated, ours).
# The download is untested: names and layout are from those two, addresses and sums from
# sacreBLEU 2.x.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/iwslt17_de_en.archives}"
pair="$SOURCE_LANG-$TARGET_LANG"
talks="trnted.$pair.tgz!$pair/IWSLT17.TED"
CORPUS=(
  "train tags trnted.$pair.tgz!$pair/train.tags.$pair.$SOURCE_LANG trnted.$pair.tgz!$pair/train.tags.$pair.$TARGET_LANG"
)
for part in dev2010 tst2010 tst2011 tst2012 tst2013 tst2014 tst2015; do
  CORPUS+=("valid seg $talks.$part.$pair.$SOURCE_LANG.xml $talks.$part.$pair.$TARGET_LANG.xml")
done
# Each archive of the test set has only its source, which is the other direction's reference.
test_side() { printf '%s' "ted-test.$1-$2.tgz!$1-$2/IWSLT17.TED.tst2017.$1-$2.$1.xml"; }
CORPUS+=("test seg $(test_side "$SOURCE_LANG" "$TARGET_LANG") $(test_side "$TARGET_LANG" "$SOURCE_LANG")")

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-100000}"
VALIDATE_UPDATES="${VALIDATE_UPDATES:-5000}"
source "$EXAMPLES/datasets/shared/sparse_seq2seq_mt.sh"
