# WMT 2016, news, Romanian and English; SOURCE_LANG and TARGET_LANG are set by who reads this.
# Bojar et al.: Findings of the 2016 Conference on Machine Translation.
# Home: https://www.statmt.org/wmt16/translation-task.html
#
# Train: Europarl v8 and SETIMES2. Validation: newsdev2016. Test: newstest2016. As in S2S, Romanian
# loses its diacritics (Sennrich, Haddow, Birch: Edinburgh Neural Machine Translation Systems for
# WMT 16), and each language has 25,000 merges of its own.
# Not fetched here: names and layout are those that several public scripts use; dev.tgz and test.tgz
# have the addresses and sums of sacreBLEU 2.x, the others no published checksum.

DATASET_NOTE="Romanian is without diacritics, also in the reference"
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/wmt16_ro_en.archives}"
europarl="training-parallel-ep-v8.tgz!training-parallel-ep-v8/europarl-v8.ro-en"
setimes="SETIMES.en-ro.txt.zip!SETIMES.en-ro"
CORPUS=(
  "train text $europarl.$SOURCE_LANG $europarl.$TARGET_LANG"
  "train text $setimes.$SOURCE_LANG $setimes.$TARGET_LANG"
)
for part in valid:dev:newsdev2016 test:test:newstest2016; do
  IFS=: read -r split folder name <<<"$part"
  name="$folder.tgz!$folder/$name-$SOURCE_LANG$TARGET_LANG"
  CORPUS+=("$split seg $name-src.$SOURCE_LANG.sgm $name-ref.$TARGET_LANG.sgm")
done
TEXT_FLAGS=(--separate-bpe --remove-diacritics ro)

BPE_MERGES="${BPE_MERGES:-25000}"
MAX_UPDATE="${MAX_UPDATE:-120000}"
source "$EXAMPLES/datasets/shared/sparse_seq2seq_mt.sh"
