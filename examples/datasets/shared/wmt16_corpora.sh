# WMT 2016, news, Romanian and English; the file that sources this one sets SOURCE_LANG and
# TARGET_LANG. Bojar et al.: Findings of the 2016 Conference on Machine Translation.
# Home: https://www.statmt.org/wmt16/translation-task.html
#
# Train: Europarl v8 and SETIMES2 (not stated, ours; S2S gives 612,422 pairs, ReLA 608,000).
# Validation: newsdev2016 (not stated, ours). Test: newstest2016. No checksum of SETIMES2 has been
# published; its layout is that of every OPUS archive in Moses' format.

source "$EXAMPLES/datasets/shared/wmt.sh"
for place in \
  "wmt16-training-parallel-ep-v8.tgz!training-parallel-ep-v8/europarl-v8.ro-en" \
  "SETIMES.en-ro.txt.zip!SETIMES.en-ro"; do
  add_corpus train text "$place" "$place"
done
for part in valid:dev:newsdev test:test:newstest; do
  IFS=: read -r split folder name <<<"$part"
  place="wmt16-$folder.tgz!$folder/${name}2016-$SOURCE_LANG$TARGET_LANG"
  add_corpus "$split" seg "$place-src" "$place-ref" .sgm
done
