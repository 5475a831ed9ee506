# What the data sets of WMT have in common. Not fetched here: addresses, names and layout are those
# of TensorFlow Datasets (translate/wmt.py), sacreBLEU 2.x and fairseq's examples/translation.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/wmt.archives}"

# add_corpus SPLIT FORMAT SOURCE TARGET [END]: a row of CORPUS; the places go on with the language.
add_corpus() { CORPUS+=("$1 $2 $3.$SOURCE_LANG${5:-} $4.$TARGET_LANG${5:-}"); }
