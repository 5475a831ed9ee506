# The good and bad pairs of Fig. 10 come from the ranking.
source "$EXAMPLES/tables/rela_ranking.sh"
