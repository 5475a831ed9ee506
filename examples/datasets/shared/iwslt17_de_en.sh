# IWSLT 2017, talks, German and English; the file that sources this one sets SOURCE_LANG and
# TARGET_LANG.
# Cettolo et al.: Overview of the IWSLT 2017 Evaluation Campaign. Home: https://wit3.fbk.eu
#
# As in S2S: 206,112 training pairs, 32,000 joint merges, at most 100,000 updates (paper).
# Train: WIT3's 2017-01-trnted. Validation: dev2010 and tst2010 to tst2015. Test: tst2017. Which sets
# S2S took is not stated, ours are those of fairseq's prepare-iwslt17-multilingual.sh and of
# scripts/clean_iwslt.py in S7, later code of the authors (github.com/deep-spin/S7).
# Not fetched here: names and layout are as in those two, addresses and sums as in sacreBLEU 2.x.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/iwslt17_de_en.archives}"
pair="$SOURCE_LANG-$TARGET_LANG"
talks="trnted.$pair.tgz!$pair/IWSLT17.TED"
CORPUS=(
  "train tags trnted.$pair.tgz!$pair/train.tags.$pair.$SOURCE_LANG trnted.$pair.tgz!$pair/train.tags.$pair.$TARGET_LANG"
)
for part in dev2010 tst2010 tst2011 tst2012 tst2013 tst2014 tst2015; do
  CORPUS+=("valid seg $talks.$part.$pair.$SOURCE_LANG.xml $talks.$part.$pair.$TARGET_LANG.xml")
done
# Each archive of the test set has its source only, which is the reference of the other direction.
test_side() { printf '%s' "ted-test.$1-$2.tgz!$1-$2/IWSLT17.TED.tst2017.$1-$2.$1.xml"; }
CORPUS+=("test seg $(test_side "$SOURCE_LANG" "$TARGET_LANG") $(test_side "$TARGET_LANG" "$SOURCE_LANG")")

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-100000}"
VALIDATE_UPDATES="${VALIDATE_UPDATES:-5000}"
source "$EXAMPLES/datasets/shared/sparse_seq2seq_mt.sh"
