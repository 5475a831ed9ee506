/* Attention with weights that are mostly zero: rectified, or alpha-entmax with 1 < alpha <= 2.

For each head the scores of a few queries with all keys are computed at once; what is kept of them
are the keys of each query that have a nonzero weight, as a list. From there on, the work grows with
the nonzeros alone: the weighted sum of values, and all gradients but the one that the scores are
computed again for. Neither scores nor weights are ever in memory as a whole. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "entmax_row.h"
#include "random.h"
#include "threads.h"
#include "tiles.h"

enum {
    QUERIES = 8 * ROWS,    /* that share a pass over the keys */
    KEYS = 64,             /* whose values stay in the first cache for all these queries */
    MOST_LISTED = 3 << 15, /* weights of such queries, that they stay in the second one */
    COST_OF_DOT = 3,       /* an entry of a product computed by itself, to one computed in a tile */
};

/* sizes: of batch, heads, queries, keys, and the width of a head, a multiple of 16. */
typedef struct {
    const int64_t *sizes;
    tensor query, key, value;
    const uint8_t *hidden; /* [batch, keys] or NULL */
    const float *bias;     /* [queries, keys] or NULL; HIDES or less hides a key */
    double alpha;          /* of entmax, or 0 for rectified weights */
    float scale;           /* of the scores */
    double dropout;        /* probability that a weight is dropped */
    uint64_t seed;         /* that decides which */
    int64_t splits;        /* of the queries of a head, that all threads have work */
    double *solution;      /* [4, batch, heads, queries], SHIFT to CUT of entmax */
} attention;

static const float HIDES = -1e4f;

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

/* Lay the workspace out from some address on; returns how many floats it takes. There is no memory
yet where the address is NULL. */
static int64_t lay_out(workspace *w, float *from, const int64_t *sizes, int backward) {
    int64_t keys = sizes[3], dim = sizes[4], padded_keys = up_to(keys ? keys : 1, PANEL);
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
void attention_workspace(const int64_t *sizes, /* 5 */
                         int64_t backward, int64_t *floats, /* 1 */
                         int threads) {
    workspace w;
    *floats = lay_out(&w, NULL, sizes, (int)backward);
}

/* Put -inf where a key is hidden from a query, and add the bias. */
static void mask(float *restrict scores, int64_t size, const uint8_t *hidden, const float *bias) {
    if (bias)
        for (int64_t j = 0; j < size; j++)
            scores[j] = bias[j] <= HIDES ? -INFINITY : scores[j] + bias[j];
    if (hidden)
        for (int64_t j = 0; j < size; j++)
            scores[j] = hidden[j] ? -INFINITY : scores[j];
}

/* How many keys these queries can see, up to the last one that any of them does. */
static int64_t visible_keys(const attention *of, int64_t first, int64_t last) {
    int64_t keys = of->sizes[3];
    if (!of->bias)
        return keys;
    int64_t visible = 0;
    for (int64_t i = first; i < last; i++)
        for (int64_t j = keys; j > visible; j--)
            if (!(of->bias[i * keys + j - 1] <= HIDES))
                visible = j;
    return visible;
}

/* The scores of the queries from first on, ROWS or what is left of them. */
static void score(const attention *of, workspace *w, int64_t b, int64_t h, int64_t first,
                  int64_t last, int64_t visible) {
    const float *rows[ROWS];
    int64_t keys = of->sizes[3], step = up_to(keys, PANEL);
    for (int r = 0; r < ROWS; r++)
        rows[r] = row_at(of->query, b, h, least(first + r, last - 1));
    times_panels(rows, w->key_panels, up_to(visible, PANEL) / PANEL, of->sizes[4], w->scores, step);
    for (int64_t i = first; i < last; i++)
        mask(w->scores + (i - first) * step, visible, of->hidden ? of->hidden + b * keys : NULL,
             of->bias ? of->bias + i * keys : NULL);
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

/* Multiply numbers of a list by 1 / (1 - dropout), or by 0 where the weight is dropped; which ones,
their places say. first: that of the block. */
static void drop(const attention *of, list some, uint64_t first, float *numbers) {
    float factor = (float)(1 / (1 - of->dropout));
    uint32_t least_kept = share_of_32_bits(of->dropout);
    for (int64_t k = 0; k < some.count; k++) {
        uint32_t number = random_at(of->seed, first + some.places[k]) >> 32;
        numbers[k] *= number < least_kept ? 0 : factor;
    }
}

/* The first place of a block of keys in [batch, heads, queries, keys]. */
static uint64_t place_of(const attention *of, int64_t b, int64_t h, int64_t query, int64_t block) {
    const int64_t *sizes = of->sizes;
    return ((b * sizes[1] + h) * sizes[2] + query) * sizes[3] + block * KEYS;
}

/* List the nonzero weights of a row of scores. */
static void weigh(const attention *of, workspace *w, int64_t query, const float *scores,
                  int64_t visible, solved_row row, mapping map) {
    int32_t *ends = w->ends + query * (w->blocks + 1);
    ends[0] = 0;
    for (int64_t block = 0; block < w->blocks; block++, scores += KEYS, visible -= KEYS) {
        list found = list_of(w, query, block);
        if (visible > 0)
            found.count =
                select_above(scores, least(visible, KEYS), of->alpha ? row.cut : 0, found.places);
        else
            found.count = 0;
        ends[block + 1] = ends[block] + (int32_t)found.count;
        if (of->alpha)
            probabilities(scores, found.places, found.count, row, map, found.weights);
        else
            for (int64_t k = 0; k < found.count; k++)
                found.weights[k] = scores[found.places[k]];
    }
}

static int64_t heads_of(const attention *of) { return of->sizes[0] * of->sizes[1]; }

/* The queries of a split, whole tiles of them. */
static int64_t first_query(const attention *of, int64_t split) {
    int64_t tiles = (of->sizes[2] + ROWS - 1) / ROWS;
    return least(tiles * split / of->splits * ROWS, of->sizes[2]);
}

static void forward_block(const attention *of, workspace *w, int64_t b, int64_t h, int64_t first,
                          int64_t last, tensor result) {
    mapping map = of->alpha ? mapping_of(of->alpha) : (mapping){0};
    int64_t dim = of->sizes[4], step = up_to(of->sizes[3], PANEL);
    int64_t rows = heads_of(of) * of->sizes[2], row = (b * of->sizes[1] + h) * of->sizes[2];
    int64_t visible = visible_keys(of, first, last);
    for (int64_t start = first; start < last; start += ROWS) {
        int64_t end = least(start + ROWS, last);
        score(of, w, b, h, start, end, visible);
        for (int64_t i = start; i < end; i++) {
            const float *scores = w->scores + (i - start) * step;
            solved_row at = {0};
            if (of->alpha) {
                double found[COUNT + 1];
                int64_t list = (i - first) * w->pitch; /* its memory, until it is made */
                solve_entmax_row(scores, visible, map, found, 1, w->places + list,
                                 w->weights + list);
                for (int k = SHIFT; k <= CUT; k++)
                    of->solution[k * rows + row + i] = found[k];
                at = solved(of->solution, rows, row + i);
            }
            weigh(of, w, i - first, scores, visible, at, map);
        }
    }
    memset(w->sums, 0, (last - first) * dim * sizeof(float));
    for (int64_t block = 0; block < w->blocks; block++)
        for (int64_t i = 0; i < last - first; i++) {
            list some = list_of(w, i, block);
            if (of->dropout > 0)
                drop(of, some, place_of(of, b, h, first + i, block), some.weights);
            add_rows(w->sums + i * dim, some.places, some.weights, some.count,
                     w->value_rows + block * KEYS * dim, dim, dim);
        }
    for (int64_t i = first; i < last; i++)
        memcpy(row_at(result, b, h, i), w->sums + (i - first) * dim, dim * sizeof(float));
}

/* result: like query, written to. floats: of memory for each thread, see attention_workspace. */
int64_t attend_forward(const int64_t *sizes, /* 5 */
                       float *query, /* [sizes[0], sizes[1], sizes[2], sizes[4]] by steps[0:3] */
                       float *key, /* [sizes[0], sizes[1], sizes[3], sizes[4]] by steps[3:6] */
                       float *value, /* [sizes[0], sizes[1], sizes[3], sizes[4]] by steps[6:9] */
                       float *result, /* [sizes[0], sizes[1], sizes[2], sizes[4]] by steps[9:12] */
                       const int64_t *steps, /* 12 */
                       const uint8_t *hidden, /* sizes[0] * sizes[3] or NULL */
                       const float *bias, /* sizes[2] * sizes[3] or NULL */
                       double alpha, double scale, double dropout, int64_t seed, int64_t splits,
                       double *solution, /* 4 * sizes[0] * sizes[1] * sizes[2] or NULL */
                       int64_t floats, float *memory, /* threads * floats */
                       int threads) {
    if (!fits_32_bits(sizes[3]))
        return TOO_LONG;
    attention of = {sizes, {query, steps}, {key, steps + 3}, {value, steps + 6},
                    hidden, bias, alpha, (float)scale, dropout, (uint64_t)seed, splits, solution};
    tensor to = {result, steps + 9};
    int64_t keys = sizes[3], dim = sizes[4];
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < heads_of(&of) * splits; task++) {
        workspace w;
        lay_out(&w, memory + thread_number() * floats, sizes, 0);
        int64_t b = task / splits / sizes[1], h = task / splits % sizes[1];
        int64_t last = first_query(&of, task % splits + 1);
        pack_panels(row_at(of.key, b, h, 0), of.key.step[2], keys, dim, of.scale, w.key_panels);
        pack_rows(row_at(of.value, b, h, 0), of.value.step[2], keys, dim, w.value_rows);
        for (int64_t i = first_query(&of, task % splits); i < last; i += w.queries)
            forward_block(&of, &w, b, h, i, least(i + w.queries, last), to);
    }
    return 0;
}

/* From the gradients of a row's nonzero weights to those of its products with keys, in place. */
static void through_mapping(const attention *of, const float *restrict weights, int64_t count,
                            float *restrict grad) {
    if (!of->alpha) { /* the slope of a positive score is 1 */
        for (int64_t k = 0; k < count; k++)
            grad[k] *= of->scale;
        return;
    }
    /* S2S, Prop. 1: s (g - <s, g> / sum s), s = p ** (2 - alpha). */
    float exponent = 2 - (float)of->alpha;
    double total = 0, product = 0;
    for (int64_t k = 0; k < count; k++) {
        float slope = slope_of(weights[k], exponent);
        total += slope;
        product += slope * grad[k];
    }
    float mean = total > 0 ? (float)(product / total) : 0;
    for (int64_t k = 0; k < count; k++)
        grad[k] = slope_of(weights[k], exponent) * (grad[k] - mean) * of->scale;
}

/* From the gradient of the result to those of the products of some queries with keys; the weights
are dropped. The first of the queries is the block's own. */
static void gradients_of_products(const attention *of, workspace *w, int64_t b, int64_t h,
                                  int64_t first, int64_t start, int64_t count, int64_t visible) {
    int64_t dim = of->sizes[4], step = up_to(of->sizes[3], PANEL), nonzeros = 0;
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
            list some = list_of(w, i, block);
            const float *products = w->products + (i - start) * step + block * KEYS;
            const float *values = row_at(of->value, b, h, block * KEYS);
            for (int64_t k = 0; k < some.count; k++)
                some.slopes[k] = dense ? products[some.places[k]]
                                       : dot(w->grad_rows + i * dim,
                                             values + some.places[k] * of->value.step[2], dim);
            if (of->dropout > 0)
                drop(of, some, place_of(of, b, h, first + i, block), some.slopes);
        }
        through_mapping(of, w->weights + i * w->pitch, w->ends[i * (w->blocks + 1) + w->blocks],
                        w->slopes + i * w->pitch);
        for (int64_t block = 0; of->dropout > 0 && block < w->blocks; block++) {
            list some = list_of(w, i, block);
            drop(of, some, place_of(of, b, h, first + i, block), some.weights);
        }
    }
}

/* What some queries add to the gradients of a block of keys and of their values. */
static void add_to_keys(const workspace *w, int64_t count, int64_t block, int64_t dim, tensor key,
                        tensor value, int64_t b, int64_t h) {
    int32_t queries[KEYS][QUERIES], size[KEYS] = {0};
    float weights[KEYS][QUERIES], slopes[KEYS][QUERIES];
    for (int64_t i = 0; i < count; i++) {
        list some = list_of(w, i, block);
        for (int64_t k = 0; k < some.count; k++) {
            int64_t j = some.places[k], at = size[j]++;
            queries[j][at] = (int32_t)i;
            weights[j][at] = some.weights[k];
            slopes[j][at] = some.slopes[k];
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

static void backward_block(const attention *of, workspace *w, int64_t b, int64_t h, int64_t first,
                           int64_t last, tensor grad, const tensor *grads) {
    mapping map = of->alpha ? mapping_of(of->alpha) : (mapping){0};
    int64_t dim = of->sizes[4], step = up_to(of->sizes[3], PANEL), count = last - first;
    int64_t rows = heads_of(of) * of->sizes[2], row = (b * of->sizes[1] + h) * of->sizes[2];
    int64_t visible = visible_keys(of, first, last);
    pack_rows(row_at(of->query, b, h, first), of->query.step[2], count, dim, w->query_rows);
    pack_rows(row_at(grad, b, h, first), grad.step[2], count, dim, w->grad_rows);
    for (int64_t start = first; start < last; start += ROWS) {
        int64_t end = least(start + ROWS, last);
        score(of, w, b, h, start, end, visible);
        for (int64_t i = start; i < end; i++) {
            int64_t at = i - first;
            solved_row solution = {0};
            if (of->alpha)
                solution = solved(of->solution, rows, row + i);
            weigh(of, w, at, w->scores + (i - start) * step, visible, solution, map);
        }
        gradients_of_products(of, w, b, h, first, start - first, end - start, visible);
    }
    memset(w->sums, 0, count * dim * sizeof(float));
    for (int64_t block = 0; block < w->blocks; block++) {
        for (int64_t i = first; i < last; i++) {
            list some = list_of(w, i - first, block);
            add_rows(w->sums + (i - first) * dim, some.places, some.slopes, some.count,
                     row_at(of->key, b, h, block * KEYS), of->key.step[2], dim);
        }
        add_to_keys(w, count, block, dim, grads[1], grads[2], b, h);
    }
    for (int64_t i = first; i < last; i++)
        memcpy(row_at(grads[0], b, h, i), w->sums + (i - first) * dim, dim * sizeof(float));
}

/* grad: of the result. grad_query: like query, written to. grad_key and grad_value: like key and
value, once for each split, split_step apart; added to. */
int64_t attend_backward(const int64_t *sizes, /* 5 */
                        float *query, /* [sizes[0], sizes[1], sizes[2], sizes[4]] by steps[0:3] */
                        float *key, /* [sizes[0], sizes[1], sizes[3], sizes[4]] by steps[3:6] */
                        float *value, /* [sizes[0], sizes[1], sizes[3], sizes[4]] by steps[6:9] */
                        float *grad, /* [sizes[0], sizes[1], sizes[2], sizes[4]] by steps[9:12] */
                        float *grad_query, /* [sizes[0], sizes[1], sizes[2], sizes[4]] by steps[12:15] */
                        float *grad_key, /* splits * sizes[0] * sizes[1] * sizes[3] * sizes[4] */
                        float *grad_value, /* splits * sizes[0] * sizes[1] * sizes[3] * sizes[4] */
                        const int64_t *steps, /* 21 */
                        const uint8_t *hidden, /* sizes[0] * sizes[3] or NULL */
                        const float *bias, /* sizes[2] * sizes[3] or NULL */
                        double alpha, double scale, double dropout, int64_t seed, int64_t splits,
                        double *solution, /* 4 * sizes[0] * sizes[1] * sizes[2] or NULL */
                        int64_t floats, float *memory, /* threads * floats */
                        int threads) {
    if (!fits_32_bits(sizes[3]))
        return TOO_LONG;
    attention of = {sizes, {query, steps}, {key, steps + 3}, {value, steps + 6},
                    hidden, bias, alpha, (float)scale, dropout, (uint64_t)seed, splits, solution};
    tensor from = {grad, steps + 9};
    int64_t keys = sizes[3], dim = sizes[4];
    int64_t split_step = heads_of(&of) * keys * dim;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < heads_of(&of) * splits; task++) {
        workspace w;
        lay_out(&w, memory + thread_number() * floats, sizes, 1);
        int64_t b = task / splits / sizes[1], h = task / splits % sizes[1], split = task % splits;
        tensor grads[] = {{grad_query, steps + 12},
                          {grad_key + split * split_step, steps + 15},
                          {grad_value + split * split_step, steps + 18}};
        const float *key_row = row_at(of.key, b, h, 0), *value_row = row_at(of.value, b, h, 0);
        pack_panels(key_row, of.key.step[2], keys, dim, of.scale, w.key_panels);
        pack_panels(value_row, of.value.step[2], keys, dim, 1, w.value_panels);
        int64_t last = first_query(&of, split + 1);
        for (int64_t i = first_query(&of, split); i < last; i += w.queries)
            backward_block(&of, &w, b, h, i, least(i + w.queries, last), from, grads);
    }
    return 0;
}
