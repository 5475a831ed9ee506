# BLEU by the transform of the output. The paper's 1.5-entmax with k = 100 is a faster search for what
# entmax15 computes; our entmax15_k100 truncates, and is no row of this table.
TITLE="Speeding Up Entmax, Table 1: BLEU by the output's transform"
DATASETS=(iwslt14_de_en wmt14_en_de wmt13_en_ru)
SETTINGS=sue
ROWS=(softmax sparsemax entmax15 alpha_relu)
COLUMNS=(
  bleu nonzeros prob_sum gold_zero words_per_second sentences_per_second parameters hours watt_hours
)
