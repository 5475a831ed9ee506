# The common part of the WMT data sets. The downloads are untested: addresses, names and layout are
# those of TensorFlow Datasets (translate/wmt.py), sacreBLEU 2.x and fairseq's examples/translation.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/wmt.archives}"

# add_corpus SPLIT FORMAT SOURCE TARGET [END]: add a row to CORPUS; .LANGUAGE and END are appended
# to SOURCE and TARGET.
add_corpus() { CORPUS+=("$1 $2 $3.$SOURCE_LANG${5:-} $4.$TARGET_LANG${5:-}"); }
