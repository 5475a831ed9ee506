# Translation with LSTM models whose output and attention have the same alpha.
TITLE="Sparse Sequence-to-Sequence Models, Table 2: translation"
DATASETS=(iwslt17_de_en iwslt17_en_de kftt_ja_en kftt_en_ja wmt16_ro_en wmt16_en_ro)
ROWS=()
for alpha in 1 1.5 2; do ROWS+=("entmax OUTPUT_ALPHA=$alpha ATTENTION_ALPHA=$alpha"); done
COLUMNS=(tokenized_bleu bleu nonzeros words_per_second sentences_per_second hours watt_hours)
