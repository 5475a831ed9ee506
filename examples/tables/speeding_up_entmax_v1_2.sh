# Table 2 of the final version, without En-Ru.
source "$EXAMPLES/tables/speeding_up_entmax_2.sh"
TITLE="Speeding Up Entmax, first version, Table 2: empty translations"
DATASETS=(iwslt14_de_en wmt14_en_de)
