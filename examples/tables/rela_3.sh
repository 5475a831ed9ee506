# The models of Table 2 on the paper's other data sets; the paper has only ReLA-g, not ReLA-i.
source "$EXAMPLES/tables/rela_2.sh"
TITLE="Sparse Attention with Linear Units, Table 3: translation on other data sets"
DATASETS=(wmt14_en_fr wmt18_en_fi wmt18_zh_en wmt16_ro_en_32k)
COLUMNS=(bleu sparsity null hours watt_hours)
SHOW="" NOTE="" FOLLOW_UP=()
