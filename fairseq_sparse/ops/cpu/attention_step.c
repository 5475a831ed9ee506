/* A step of generation: attention of one query per head, with weights that are mostly zero. Keys
and values are used where they lie, and values with a weight of zero are not read. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "entmax_row.h"
#include "threads.h"
#include "tiles.h"

/* Sizes of a step, and strides of its keys and values in batch, heads and time. */
typedef struct {
    int64_t batch, heads, keys;
    int64_t width; /* of a head, a multiple of 16 */
    int64_t key_strides[3], value_strides[3];
} step_sizes;

/* The memory of a thread: numbers for each key. */
typedef struct {
    float *scores, *weights; /* weights: of the keys in places */
    int32_t *places;
} workspace;

static void score(const float *query, const float *keys, int64_t step, int64_t count, int64_t dim,
                  float scale, const uint8_t *masked, float *scores) {
    for (int64_t j = 0; j < count; j++) {
        const float *key = keys + j * step;
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t c = 0; c < dim; c++)
            total += query[c] * key[c];
        scores[j] = masked && masked[j] ? -INFINITY : scale * total;
    }
}

/* List the nonzero weights; returns how many there are. */
static int64_t list_weights(workspace w, int64_t keys, double alpha) {
    if (!alpha) {
        int64_t count = select_above(w.scores, keys, 0, w.places);
        for (int64_t k = 0; k < count; k++)
            w.weights[k] = w.scores[w.places[k]];
        return count;
    }
    mapping map = mapping_of(alpha);
    double solution[COUNT + 1];
    solve_entmax_row(w.scores, keys, map, solution, 1, w.places, w.weights);
    solved_row row = solved(solution, 1, 0);
    int64_t count = select_above(w.scores, keys, row.cut, w.places);
    probabilities(w.scores, w.places, count, row, map, w.weights);
    return count;
}

/* query and result: [batch, heads, 1, width], contiguous. alpha: of entmax, or 0 for rectified
weights. weights: [batch, heads, keys], written to, or NULL. */
int64_t attend_step(const step_sizes *sizes, const float *query, float *key, float *value,
                    const uint8_t *masked, double alpha, double scale, float *result,
                    float *weights, int threads) {
    int64_t heads = sizes->heads, keys = sizes->keys, dim = sizes->width;
    tensor key_rows = {key, sizes->key_strides}, value_rows = {value, sizes->value_strides};
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 3, keys + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        workspace w = {own_list(memory, 0), own_list(memory, 1), own_list(memory, 2)};
#pragma omp for schedule(static)
        for (int64_t head = 0; head < sizes->batch * heads; head++) {
            int64_t b = head / heads, h = head % heads;
            score(query + head * dim, row_at(key_rows, b, h, 0), key_rows.step[2], keys, dim,
                  (float)scale, masked ? masked + b * keys : NULL, w.scores);
            int64_t count = list_weights(w, keys, alpha);
            memset(result + head * dim, 0, dim * sizeof *result);
            add_rows(result + head * dim, w.places, w.weights, count, row_at(value_rows, b, h, 0),
                     value_rows.step[2], dim);
            if (weights) {
                memset(weights + head * keys, 0, keys * sizeof *weights);
                for (int64_t k = 0; k < count; k++)
                    weights[head * keys + w.places[k]] = w.weights[k];
            }
        }
    }
    free(memory.data);
    return 0;
}
