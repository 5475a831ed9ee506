/* A search for the logits that can be above the threshold, by logits in bfloat16.

bfloat16 products are twice as fast where the processor has them, but exact to two digits only.
Their error has a bound, though, and with a sparse output few logits plus this bound are above the
threshold. These are computed in full precision; the others certainly have probability 0. So the
result is exact.

The bound. Let x and w be rows of `width` numbers, x' and w' the same rounded to bfloat16, and z' the
product as it is found, itself rounded to bfloat16. With the midpoints x~ = (x + x') / 2 and w~,

    x w - x' w' = (x - x') w~ + x~ (w - w')                      holds exactly, so that
    |z' - x w| <= |x - x'| |w~| + |x~| |w - w'|                  (Cauchy-Schwarz)
                  + 2 u width |x'| |w'|                          (the sum in single precision)
                  + 2 ** -8 |z'|                                 (its rounding to bfloat16)

to which very small numbers add a little. Here u = 2 ** -24. A product of two bfloat16 numbers is
exact in single precision. Each of at most `width` additions, in whatever order, changes the sum by
at most 2 u times the sum of all |x'_k w'_k|, even if it does not round to the nearest, and that sum
is at most |x'| |w'|. round_rows computes for each row

    norm = (1 + r) |x~| + v,   error = (1 + r) |x - x'| + v + r norm,   r = 4 u (width + 8),

and bounds_of_row adds row_error * norm + row_norm * error + ROUNDING |z'|, both in single precision.
That this is enough:

- A sum of `width` squares loses at most (width + 2) u of itself, its root half of that, and what
  follows 4 u more: less than r / 4. So |x~| and |x - x'| stay multiplied by 1 + r / 2 or more, of
  which bounds_of_row may lose 4 u <= r / 8. (All this is for widths up to MOST_SUMMED, where
  r <= 1 / 4. The error of longer rows is infinite.)
- The two terms r norm * norm come to 8 u (width + 8) |x~| |w~| or more. The sum's error is less, since
  |x'| <= 1.002 |x~|: each entry that is not below 2 ** -126 has |x - x'| <= 2 ** -8 |x'|.
- ROUNDING - 2 ** -8 is more than the 4 u of |z'| that bounds_of_row may lose.
- Numbers below 2 ** -126 may be taken for 0, before or after any step. Squares that are lost make a
  norm or an error smaller by at most a = sqrt(width) 2 ** -63 < 1.1e-19 width. v = 3e-19 width makes
  up for it, and is more by 1.9e-19 width. Times |w~|, this exceeds by far the 2 ** -126 |w'| that an
  entry of x' changes the product by. Sums and products that are lost, at most 2 width + 6 of them in
  the product and its bound, change these by 2 ** -126 each: together by less than the rest of the
  two products of v, 2 (v * v - a * a) > 1.5e-37 width ** 2.
- Where a number is too large for bfloat16, or a square for single precision, norm or error is
  infinite, and with them the bound. If a sum overflows without that, z' is infinite or NaN: it is a
  candidate by its upper bound, infinite or NaN, or it makes all of its row candidates by its lower
  bound, which is NaN. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"
#include "threshold.h"

/* |z' - x w| is at most row_error * norm + row_norm * error + ROUNDING * |z'|. */
static const float ROUNDING = 0.00391f;
static const int64_t MOST_SUMMED = 1 << 20;

static inline float widened(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Round to the nearest, ties to even; a NaN stays one. */
static inline uint16_t rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return x != x ? 0x7fc0 : (uint16_t)nearest;
}

/* x' of each row of x [rows, width], and bounds, see above: the norm of the midpoint of x and x', and
the error |x - x'| with that of sums in single precision. */
void round_rows(const float *x, int64_t rows, int64_t width, uint16_t *halves, float *norm,
                float *error, int threads) {
    float lost_by_sums = 2.4e-7f * (float)(width + 8), vanished = 3e-19f * (float)width;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float squares = 0, lost = 0;
#pragma omp simd reduction(+ : squares, lost)
        for (int64_t k = 0; k < width; k++) {
            float full = x[i * width + k];
            uint16_t half = rounded(full);
            float back = widened(half), middle = 0.5f * full + 0.5f * back;
            halves[i * width + k] = half;
            squares += middle * middle;
            lost += (full - back) * (full - back);
        }
        norm[i] = (1 + lost_by_sums) * sqrtf(squares) + vanished;
        error[i] = (1 + lost_by_sums) * sqrtf(lost) + vanished + lost_by_sums * norm[i];
        if (width > MOST_SUMMED)
            error[i] = INFINITY;
    }
}

/* Logits in bfloat16 and what their errors depend on. */
typedef struct {
    const uint16_t *z; /* [rows, size] */
    int64_t rows, size;
    const float *row_norm, *row_error; /* of the features, [rows] */
    const float *norm, *error;         /* of the weights, [size] */
} screen;

/* The upper bound (sign 1) or the lower one (sign -1) of each logit of a row. Not inlined, so that
bounds are rounded alike when candidates are counted and when they are filled in. */
__attribute__((noinline)) static void bounds_of_row(screen all, int64_t i, float sign, float *restrict bound) {
    const uint16_t *restrict z = all.z + i * all.size;
    float row_norm = sign * all.row_norm[i], row_error = sign * all.row_error[i];
    float rounding = sign * ROUNDING;
#pragma omp simd
    for (int64_t j = 0; j < all.size; j++) {
        float about = widened(z[j]);
        bound[j] =
            about + rounding * fabsf(about) + row_error * all.norm[j] + row_norm * all.error[j];
    }
}

/* The columns of the logits of a row that may be above the cut; returns how many. */
static int64_t candidates_of_row(screen all, int64_t i, float cut, float *bound, int32_t *columns) {
    bounds_of_row(all, i, 1, bound);
    return select_above(bound, all.size, cut, columns);
}

/* For each row a cut, below which a logit has probability 0, the number of logits that may be above
it, and the columns of the first `room` of them.
tau: of alpha-ReLU; a NaN for alpha-entmax, where the cut comes from lower bounds of the logits, since
the threshold can only rise with a logit. */
int64_t find_candidates(const uint16_t *z, int64_t rows, int64_t size, const float *row_norm,
                        const float *row_error, const float *norm, const float *error,
                        double alpha, float tau, int64_t room, float *cut, int64_t *count,
                        int32_t *found, int threads) {
    screen all = {z, rows, size, row_norm, row_error, norm, error};
    mapping map = mapping_of(alpha);
    int is_entmax = tau != tau;
    float fixed = is_entmax ? 0 : greatest_zero(map, tau);
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 3, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        float *bound = own_list(memory, 0), *x = own_list(memory, 1);
        int32_t *columns = own_list(memory, 2);
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < rows; i++) {
            cut[i] = fixed;
            if (is_entmax) {
                bounds_of_row(all, i, -1, bound);
                cut[i] = support_floor(bound, size, maximum_of(bound, size), map, x);
            }
            count[i] = candidates_of_row(all, i, cut[i], bound, columns);
            memcpy(found + i * room, columns, least(count[i], room) * sizeof *columns);
        }
    }
    free(memory.data);
    return 0;
}

/* The products of x with four rows of w at a time: in one sum, each addition waits for the last. */
static void products(const float *restrict x, const float *restrict weight, int64_t width,
                     const int32_t *restrict columns, int64_t count, float *restrict out) {
    for (int64_t k = 0; k < count; k += 4) {
        int64_t last = count - 1;
        const float *a = weight + columns[k] * width;
        const float *b = weight + columns[least(k + 1, last)] * width;
        const float *c = weight + columns[least(k + 2, last)] * width;
        const float *d = weight + columns[least(k + 3, last)] * width;
        float sums[4], sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
        for (int64_t j = 0; j < width; j++) {
            sum_a += x[j] * a[j];
            sum_b += x[j] * b[j];
            sum_c += x[j] * c[j];
            sum_d += x[j] * d[j];
        }
        sums[0] = sum_a, sums[1] = sum_b, sums[2] = sum_c, sums[3] = sum_d;
        memcpy(out + k, sums, least(4, count - k) * sizeof *sums);
    }
}

/* The candidates that were found, from start[i] on, with their logits in full precision; and the
logit of each row's target. */
int64_t fill_candidates(const uint16_t *z, int64_t rows, int64_t size, const float *row_norm,
                        const float *row_error, const float *norm, const float *error,
                        const float *cut, int64_t room, const int32_t *found, const float *x,
                        const float *weight, int64_t width, const int64_t *target,
                        const int64_t *start, int32_t *columns, float *logits, float *gold,
                        int threads) {
    screen all = {z, rows, size, row_norm, row_error, norm, error};
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 2, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        float *bound = own_list(memory, 0);
        int32_t *again = own_list(memory, 1);
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < rows; i++) {
            int64_t count = start[i + 1] - start[i], listed = count;
            const int32_t *listed_columns = found + i * room;
            if (count > room) {
                listed = least(candidates_of_row(all, i, cut[i], bound, again), count);
                listed_columns = again;
            }
            if (listed) /* else columns may be NULL, which memcpy must not get */
                memcpy(columns + start[i], listed_columns, listed * sizeof *columns);
            products(x + i * width, weight, width, listed_columns, listed, logits + start[i]);
            /* A thread that takes denormals for 0 may find fewer than one that does not. */
            for (int64_t k = start[i] + listed; k < start[i + 1]; k++)
                columns[k] = 0, logits[k] = -INFINITY;
            int32_t label = (int32_t)target[i];
            products(x + i * width, weight, width, &label, 1, gold + i);
        }
    }
    free(memory.data);
    return 0;
}
