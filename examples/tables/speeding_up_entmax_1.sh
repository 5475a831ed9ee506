# BLEU by the transform of the output. The paper's two rows of 1.5-entmax, a full sort and k = 100, are
# one model: the first is entmax15 here.
TITLE="Speeding Up Entmax, Table 1: BLEU by the output's transform"
DATASETS=(iwslt14_de_en wmt14_en_de wmt13_en_ru)
SETTINGS=sue
ROWS=(softmax sparsemax entmax15 entmax15_k100 alpha_relu)
COLUMNS=(
  bleu nonzeros prob_sum gold_zero words_per_second sentences_per_second parameters hours watt_hours
)
