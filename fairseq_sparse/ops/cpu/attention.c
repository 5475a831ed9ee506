/* Attention with weights that are mostly zero: rectified, or alpha-entmax with 1 < alpha <= 2.

For each head the scores of a few queries with all keys are computed at once, and for each query
only a list of the keys with nonzero weights is kept. From there on, the work grows with the number
of nonzeros alone: the weighted sum of values and, once the scores are recomputed, all gradients.
Neither scores nor weights are ever in memory as a whole. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "entmax_row.h"
#include "random.h"
#include "threads.h"
#include "tiles.h"

enum {
    QUERIES = 8 * ROWS,    /* queries that share a pass over the keys */
    KEYS = 64,             /* keys whose values stay in the L1 cache for all these queries */
    MOST_LISTED = 3 << 15, /* most weights of such queries, so that they stay in the L2 cache */
    COST_OF_DOT = 3,       /* cost of a product computed by itself, relative to one in a tile */
};

/* The numbers that an attention depends on. */
typedef struct {
    int64_t batch, heads, queries, keys;
    int64_t width;  /* of a head, a multiple of 16 */
    int64_t splits; /* of the queries of a head, so that all threads have work */
    int64_t seed;   /* decides which weights are dropped */
    double alpha;   /* of entmax, or 0 for rectified weights */
    double scale;   /* of the scores */
    double dropout; /* probability that a weight is dropped */
} attention_options;

/* Strides in batch, heads and time of tensors [batch, heads, time, width]. */
typedef struct {
    int64_t query[3], key[3], value[3], result[3]; /* result: also of its gradient */
    int64_t grad_query[3], grad_key[3], grad_value[3];
} attention_strides;

typedef struct {
    const attention_options *options;
    tensor query, key, value;
    const uint8_t *masked; /* [batch, keys] or NULL */
    const float *bias;     /* [queries, keys] or NULL; MASKED or less masks a key */
    double *solution;      /* [4, batch, heads, queries], SHIFT to CUT of entmax */
    int64_t keys, width;   /* copies of the options that are read most often */
} attention;

static const float MASKED = -1e4f;

/* The memory of a thread. */
typedef struct {
    float *key_panels, *value_panels; /* [panels, dim, PANEL] */
    float *value_rows;                /* [keys, dim] */
    float *query_rows, *grad_rows;    /* [QUERIES, dim] */
    float *sums;                      /* [QUERIES, dim] */
    float *scores, *products;         /* [ROWS, panels * PANEL] */
    int32_t *places;                  /* [QUERIES, keys + BLOCK]: the keys of nonzero weights, */
    float *weights, *slopes;          /* these weights, and the gradients of their scores */
    int32_t *ends;                    /* [QUERIES, 1 + blocks of KEYS]: where a block ends in it */
    int64_t queries, pitch, blocks;
} workspace;

/* Lay out the workspace at an address; return its size in floats. If the address is NULL, there is
no memory yet, and only the size is computed. */
static int64_t lay_out(workspace *w, float *from, const attention_options *options,
                       int backward) {
    int64_t keys = options->keys, dim = options->width, padded_keys = up_to(keys ? keys : 1, PANEL);
    int64_t fitting = MOST_LISTED / padded_keys / ROWS * ROWS;
    w->queries = fitting < ROWS ? ROWS : least(fitting, QUERIES);
    w->pitch = up_to(keys + BLOCK, BLOCK);
    w->blocks = (keys + KEYS - 1) / KEYS;
    int64_t lists = w->queries * w->pitch, used = 0;
    float *no_ints = NULL, *no_ends = NULL;
    struct { float **part; int64_t size; } parts[] = {
        {&w->key_panels, padded_keys * dim},
        {&w->sums, w->queries * dim},
        {&w->scores, ROWS * padded_keys},
        {&no_ints, lists},
        {&w->weights, lists},
        {&no_ends, w->queries * (w->blocks + 1)},
        {&w->value_panels, backward ? padded_keys * dim : 0},
        {&w->value_rows, backward ? 0 : keys * dim},
        {&w->query_rows, backward ? w->queries * dim : 0},
        {&w->grad_rows, backward ? w->queries * dim : 0},
        {&w->products, backward ? ROWS * padded_keys : 0},
        {&w->slopes, backward ? lists : 0},
    };
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        int64_t step = up_to(parts[i].size, 16) + GUARD;
        if (from) {
            *parts[i].part = from + used;
            guard(from + used, parts[i].size, step);
        }
        used += step;
    }
    w->places = (int32_t *)no_ints;
    w->ends = (int32_t *)no_ends;
    return used;
}

/* How many floats this was compiled to work on at once. */
int attention_lanes(void) { return LANES; }

/* How many floats of memory a thread needs. */
void attention_workspace(const attention_options *options, int64_t backward, int64_t *floats,
                         int threads) {
    workspace w;
    *floats = lay_out(&w, NULL, options, (int)backward);
}

/* Put -inf where a key is masked from a query, and add the bias. */
static void mask(float *restrict scores, int64_t size, const uint8_t *masked, const float *bias) {
    if (bias)
        for (int64_t j = 0; j < size; j++)
            scores[j] = bias[j] <= MASKED ? -INFINITY : scores[j] + bias[j];
    if (masked)
        for (int64_t j = 0; j < size; j++)
            scores[j] = masked[j] ? -INFINITY : scores[j];
}

/* The number of keys up to the last one that any of these queries can see. */
static int64_t visible_keys(const attention *a, int64_t first, int64_t last) {
    int64_t keys = a->keys;
    if (!a->bias)
        return keys;
    int64_t visible = 0;
    for (int64_t i = first; i < last; i++)
        for (int64_t j = keys; j > visible; j--)
            if (!(a->bias[i * keys + j - 1] <= MASKED))
                visible = j;
    return visible;
}

/* Compute the scores of the queries from first to last, at most ROWS. */
static void score(const attention *a, workspace *w, int64_t b, int64_t h, int64_t first,
                  int64_t last, int64_t visible) {
    const float *rows[ROWS];
    int64_t keys = a->keys, step = up_to(keys, PANEL);
    for (int r = 0; r < ROWS; r++)
        rows[r] = row_at(a->query, b, h, least(first + r, last - 1));
    times_panels(rows, w->key_panels, up_to(visible, PANEL) / PANEL, a->width, w->scores, step);
    for (int64_t i = first; i < last; i++)
        mask(w->scores + (i - first) * step, visible, a->masked ? a->masked + b * keys : NULL,
             a->bias ? a->bias + i * keys : NULL);
}

/* The nonzero weights of one query with one block of keys. */
typedef struct {
    int32_t *places; /* of the keys, in the block */
    float *weights, *slopes;
    int64_t count;
} list;

static list list_of(const workspace *w, int64_t query, int64_t block) {
    const int32_t *ends = w->ends + query * (w->blocks + 1) + block;
    int64_t start = query * w->pitch + ends[0];
    return (list){w->places + start, w->weights + start, w->slopes + start, ends[1] - ends[0]};
}

/* Multiply numbers of a list by 1 / (1 - dropout), or by 0 where the weight is dropped, which
depends on its place. first: the place of the block. */
static void drop(const attention *a, list nonzeros, uint64_t first, float *numbers) {
    float factor = (float)(1 / (1 - a->options->dropout));
    uint32_t least_kept = share_of_32_bits(a->options->dropout);
    uint64_t seed = (uint64_t)a->options->seed;
    for (int64_t k = 0; k < nonzeros.count; k++) {
        uint32_t number = random_half_at(seed, first + nonzeros.places[k]);
        numbers[k] *= number < least_kept ? 0 : factor;
    }
}

/* The first place of a block of keys in [batch, heads, queries, keys]. */
static uint64_t place_of(const attention *a, int64_t b, int64_t h, int64_t query, int64_t block) {
    const attention_options *options = a->options;
    return ((b * options->heads + h) * options->queries + query) * a->keys + block * KEYS;
}

/* List the nonzero weights of a row of scores. */
static void list_weights(const attention *a, workspace *w, int64_t query, const float *scores,
                  int64_t visible, solved_row row, mapping map) {
    int32_t *ends = w->ends + query * (w->blocks + 1);
    float cut = a->options->alpha ? row.cut : 0;
    ends[0] = 0;
    for (int64_t block = 0; block < w->blocks; block++, scores += KEYS, visible -= KEYS) {
        list found = list_of(w, query, block);
        found.count = visible > 0 ? select_above(scores, least(visible, KEYS), cut, found.places) : 0;
        ends[block + 1] = ends[block] + (int32_t)found.count;
        if (a->options->alpha)
            probabilities(scores, found.places, found.count, row, map, found.weights);
        else
            for (int64_t k = 0; k < found.count; k++)
                found.weights[k] = scores[found.places[k]];
    }
}

static int64_t head_count(const attention *a) { return a->options->batch * a->options->heads; }

/* The first query of a split, which consists of whole tiles. */
static int64_t first_query(const attention *a, int64_t split) {
    int64_t tiles = (a->options->queries + ROWS - 1) / ROWS;
    return least(tiles * split / a->options->splits * ROWS, a->options->queries);
}

static void forward_block(const attention *a, workspace *w, int64_t b, int64_t h, int64_t first,
                          int64_t last, tensor result) {
    mapping map = a->options->alpha ? mapping_of(a->options->alpha) : (mapping){0};
    int64_t dim = a->width, step = up_to(a->keys, PANEL);
    int64_t queries = a->options->queries, rows = head_count(a) * queries;
    int64_t row = (b * a->options->heads + h) * queries;
    int64_t visible = visible_keys(a, first, last);
    for (int64_t start = first; start < last; start += ROWS) {
        int64_t end = least(start + ROWS, last);
        score(a, w, b, h, start, end, visible);
        for (int64_t i = start; i < end; i++) {
            const float *scores = w->scores + (i - start) * step;
            solved_row solution = {0};
            if (a->options->alpha) {
                double found[COUNT + 1];
                int64_t list = (i - first) * w->pitch; /* used as memory until the list is made */
                solve_entmax_row(scores, visible, map, found, 1, w->places + list,
                                 w->weights + list);
                for (int k = SHIFT; k <= CUT; k++)
                    a->solution[k * rows + row + i] = found[k];
                solution = solved(a->solution, rows, row + i);
            }
            list_weights(a, w, i - first, scores, visible, solution, map);
        }
    }
    memset(w->sums, 0, (last - first) * dim * sizeof(float));
    for (int64_t block = 0; block < w->blocks; block++)
        for (int64_t i = 0; i < last - first; i++) {
            list nonzeros = list_of(w, i, block);
            if (a->options->dropout > 0)
                drop(a, nonzeros, place_of(a, b, h, first + i, block), nonzeros.weights);
            add_rows(w->sums + i * dim, nonzeros.places, nonzeros.weights, nonzeros.count,
                     w->value_rows + block * KEYS * dim, dim, dim);
        }
    for (int64_t i = first; i < last; i++)
        memcpy(row_at(result, b, h, i), w->sums + (i - first) * dim, dim * sizeof(float));
}

/* result: like query, written to. floats: of memory for each thread, see attention_workspace. */
int64_t attend_forward(const attention_options *options, const attention_strides *strides,
                       float *query, float *key, float *value, float *result,
                       const uint8_t *masked, const float *bias, double *solution, int64_t floats,
                       float *memory, int threads) {
    if (!fits_32_bits(options->keys))
        return TOO_LONG;
    int64_t keys = options->keys, dim = options->width, splits = options->splits;
    attention a = {options, {query, strides->query}, {key, strides->key},
                   {value, strides->value}, masked, bias, solution, keys, dim};
    tensor out = {result, strides->result};
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < head_count(&a) * splits; task++) {
        workspace w;
        lay_out(&w, memory + thread_number() * floats, options, 0);
        int64_t b = task / splits / options->heads, h = task / splits % options->heads;
        int64_t last = first_query(&a, task % splits + 1);
        pack_panels(row_at(a.key, b, h, 0), a.key.step[2], keys, dim, (float)options->scale,
                    w.key_panels);
        pack_rows(row_at(a.value, b, h, 0), a.value.step[2], keys, dim, w.value_rows);
        for (int64_t i = first_query(&a, task % splits); i < last; i += w.queries)
            forward_block(&a, &w, b, h, i, least(i + w.queries, last), out);
    }
    return 0;
}

/* From the gradients of a row's nonzero weights to those of its products with keys, in place.
slopes: scratch space for count numbers. */
static void through_mapping(const attention *a, mapping map, const float *weights, int64_t count,
                            float *slopes, float *grad) {
    float scale = (float)a->options->scale;
    if (a->options->alpha)
        through_entmax(weights, grad, count, map, scale, slopes, grad);
    else /* the slope of a positive score is 1 */
        for (int64_t k = 0; k < count; k++)
            grad[k] *= scale;
}

/* From the gradient of the result to those of the products of a tile's queries with keys. Dropout
is applied to the weights, and the tile's scores are overwritten. first: the block's first query. */
static void gradients_of_products(const attention *a, workspace *w, mapping map, int64_t b,
                                  int64_t h, int64_t first, int64_t start, int64_t count,
                                  int64_t visible) {
    int64_t dim = a->width, step = up_to(a->keys, PANEL), nonzeros = 0;
    const float *rows[ROWS];
    for (int64_t i = start; i < start + count; i++)
        nonzeros += w->ends[i * (w->blocks + 1) + w->blocks];
    int dense = nonzeros * COST_OF_DOT > count * visible;
    if (dense) {
        for (int r = 0; r < ROWS; r++)
            rows[r] = w->grad_rows + least(start + r, start + count - 1) * dim;
        times_panels(rows, w->value_panels, up_to(visible, PANEL) / PANEL, dim, w->products, step);
    }
    for (int64_t i = start; i < start + count; i++) {
        for (int64_t block = 0; block < w->blocks; block++) {
            list nonzeros = list_of(w, i, block);
            const float *products = w->products + (i - start) * step + block * KEYS;
            const float *values = row_at(a->value, b, h, block * KEYS);
            for (int64_t k = 0; k < nonzeros.count; k++)
                nonzeros.slopes[k] = dense ? products[nonzeros.places[k]]
                                       : dot(w->grad_rows + i * dim,
                                             values + nonzeros.places[k] * a->value.step[2], dim);
            if (a->options->dropout > 0)
                drop(a, nonzeros, place_of(a, b, h, first + i, block), nonzeros.slopes);
        }
        through_mapping(a, map, w->weights + i * w->pitch,
                        w->ends[i * (w->blocks + 1) + w->blocks], w->scores,
                        w->slopes + i * w->pitch);
        for (int64_t block = 0; a->options->dropout > 0 && block < w->blocks; block++) {
            list nonzeros = list_of(w, i, block);
            drop(a, nonzeros, place_of(a, b, h, first + i, block), nonzeros.weights);
        }
    }
}

/* Add the queries of a block to the gradients of a block of keys and of their values. */
static void add_to_keys(const workspace *w, int64_t count, int64_t block, int64_t dim, tensor key,
                        tensor value, int64_t b, int64_t h) {
    int32_t queries[KEYS][QUERIES], size[KEYS] = {0};
    float weights[KEYS][QUERIES], slopes[KEYS][QUERIES];
    for (int64_t i = 0; i < count; i++) {
        list nonzeros = list_of(w, i, block);
        for (int64_t k = 0; k < nonzeros.count; k++) {
            int64_t j = nonzeros.places[k], place = size[j]++;
            queries[j][place] = (int32_t)i;
            weights[j][place] = nonzeros.weights[k];
            slopes[j][place] = nonzeros.slopes[k];
        }
    }
    for (int64_t j = 0; j < KEYS; j++)
        if (size[j]) {
            int64_t time = block * KEYS + j;
            add_rows(row_at(value, b, h, time), queries[j], weights[j], size[j], w->grad_rows,
                     dim, dim);
            add_rows(row_at(key, b, h, time), queries[j], slopes[j], size[j], w->query_rows, dim,
                     dim);
        }
}

static void backward_block(const attention *a, workspace *w, int64_t b, int64_t h, int64_t first,
                           int64_t last, tensor grad, const tensor *grads) {
    mapping map = a->options->alpha ? mapping_of(a->options->alpha) : (mapping){0};
    int64_t dim = a->width, step = up_to(a->keys, PANEL), count = last - first;
    int64_t queries = a->options->queries, rows = head_count(a) * queries;
    int64_t row = (b * a->options->heads + h) * queries;
    int64_t visible = visible_keys(a, first, last);
    pack_rows(row_at(a->query, b, h, first), a->query.step[2], count, dim, w->query_rows);
    pack_rows(row_at(grad, b, h, first), grad.step[2], count, dim, w->grad_rows);
    for (int64_t start = first; start < last; start += ROWS) {
        int64_t end = least(start + ROWS, last);
        score(a, w, b, h, start, end, visible);
        for (int64_t i = start; i < end; i++) {
            solved_row solution = {0};
            if (a->options->alpha)
                solution = solved(a->solution, rows, row + i);
            list_weights(a, w, i - first, w->scores + (i - start) * step, visible, solution, map);
        }
        gradients_of_products(a, w, map, b, h, first, start - first, end - start, visible);
    }
    memset(w->sums, 0, count * dim * sizeof(float));
    for (int64_t block = 0; block < w->blocks; block++) {
        for (int64_t i = first; i < last; i++) {
            list nonzeros = list_of(w, i - first, block);
            add_rows(w->sums + (i - first) * dim, nonzeros.places, nonzeros.slopes, nonzeros.count,
                     row_at(a->key, b, h, block * KEYS), a->key.step[2], dim);
        }
        add_to_keys(w, count, block, dim, grads[1], grads[2], b, h);
    }
    for (int64_t i = first; i < last; i++)
        memcpy(row_at(grads[0], b, h, i), w->sums + (i - first) * dim, dim * sizeof(float));
}

/* grad: of the result. grad_query: like query, written to. grad_key and grad_value: like key and
value, once for each split; added to. */
int64_t attend_backward(const attention_options *options, const attention_strides *strides,
                        float *query, float *key, float *value, float *grad, float *grad_query,
                        float *grad_key, float *grad_value, const uint8_t *masked,
                        const float *bias, double *solution, int64_t floats, float *memory,
                        int threads) {
    if (!fits_32_bits(options->keys))
        return TOO_LONG;
    int64_t keys = options->keys, dim = options->width, splits = options->splits;
    attention a = {options, {query, strides->query}, {key, strides->key},
                   {value, strides->value}, masked, bias, solution, keys, dim};
    tensor grad_result = {grad, strides->result};
    int64_t split_step = head_count(&a) * keys * dim;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < head_count(&a) * splits; task++) {
        workspace w;
        lay_out(&w, memory + thread_number() * floats, options, 1);
        int64_t b = task / splits / options->heads, h = task / splits % options->heads;
        int64_t split = task % splits, last = first_query(&a, split + 1);
        tensor grads[] = {{grad_query, strides->grad_query},
                          {grad_key + split * split_step, strides->grad_key},
                          {grad_value + split * split_step, strides->grad_value}};
        const float *key_row = row_at(a.key, b, h, 0), *value_row = row_at(a.value, b, h, 0);
        pack_panels(key_row, a.key.step[2], keys, dim, (float)options->scale, w.key_panels);
        pack_panels(value_row, a.value.step[2], keys, dim, 1, w.value_panels);
        for (int64_t i = first_query(&a, split); i < last; i += w.queries)
            backward_block(&a, &w, b, h, i, least(i + w.queries, last), grad_result, grads);
    }
    return 0;
}
