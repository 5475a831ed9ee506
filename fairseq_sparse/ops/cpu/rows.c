/* alpha-entmax and alpha-ReLU of the rows of a matrix, for 1 < alpha <= 2.

A row is first solved, and then filled in, dense or sparse: see entmax_row.h. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "entmax_row.h"
#include "threads.h"

/* Rows of logits: all of length size, or of any lengths, the i-th from start[i] to start[i + 1]. */
typedef struct {
    const float *z;
    const int64_t *start; /* NULL where all have length size */
    int64_t rows, size;   /* where not, size is the greatest length */
} matrix;

static const float *row_of(matrix all, int64_t i) {
    return all.z + (all.start ? all.start[i] : i * all.size);
}

static int64_t length_of(matrix all, int64_t i) {
    return all.start ? all.start[i + 1] - all.start[i] : all.size;
}

/* One row of alpha-ReLU, whose threshold is given. Its CONJUGATE is sum p ** alpha / alpha. */
static void solve_alpha_relu_row(const float *restrict z, int64_t size, mapping map, float tau,
                                 double *solution, int64_t step, int32_t *restrict places,
                                 float *restrict x) {
    float cut = greatest_zero(map, tau);
    int64_t count = select_above(z, size, cut, places);
    for (int64_t k = 0; k < count; k++)
        x[k] = map.rate * z[places[k]];
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
    for (int64_t k = count; k < blocks * BLOCK; k++)
        x[k] = tau - 1;
    solution[SHIFT * step] = 0;
    solution[TAU * step] = tau;
    solution[SCALE * step] = 1;
    solution[CUT * step] = cut;
    solution[CONJUGATE * step] = add_up(x, blocks * BLOCK, tau, map).power / map.alpha;
    solution[COUNT * step] = count;
}

/* solution: [6, rows]. tau: of alpha-ReLU; a NaN for alpha-entmax. */
int64_t solve_rows(const float *z, const int64_t *start, int64_t rows, int64_t size, double alpha,
                   float tau, double *solution, int threads) {
    matrix all = {z, start, rows, size};
    mapping map = mapping_of(alpha);
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 2, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        int32_t *places = own_list(memory, 0);
        float *x = own_list(memory, 1);
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < rows; i++) {
            const float *row = row_of(all, i);
            if (tau != tau)
                solve_entmax_row(row, length_of(all, i), map, solution + i, rows, places, x);
            else
                solve_alpha_relu_row(row, length_of(all, i), map, tau, solution + i, rows, places, x);
        }
    }
    free(memory.data);
    return 0;
}

/* out [rows, size]: p, or if logarithms its logarithm, -inf where p is 0. tau: of alpha-ReLU; a NaN
for alpha-entmax, whose thresholds of (alpha - 1) z are written to `thresholds`. alpha: of the i-th row
at i * alpha_step. Rows are solved and filled in by one call: for few of them, a second call would take
as long as either. */
int64_t probabilities_of_rows(const float *z, int64_t rows, int64_t size, const double *alpha,
                              int64_t alpha_step, float tau, int64_t logarithms, float *out,
                              float *thresholds, int threads) {
    float outside = logarithms ? -INFINITY : 0;
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 2, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        int32_t *places = own_list(memory, 0);
        float *x = own_list(memory, 1);
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < rows; i++) {
            const float *row = z + i * size;
            float *filled = out + i * size;
            mapping map = mapping_of(alpha[i * alpha_step]);
            double solution[COUNT + 1];
            if (tau != tau)
                solve_entmax_row(row, size, map, solution, 1, places, x);
            else
                solve_alpha_relu_row(row, size, map, tau, solution, 1, places, x);
            solved_row found = solved(solution, 1, 0);
            if (thresholds)
                thresholds[i] = (float)(found.tau + (map.alpha - 1) * found.shift);
            int64_t count = select_above(row, size, found.cut, places);
            probabilities(row, places, count, found, map, x);
            for (int64_t j = 0; j < size; j++)
                filled[j] = outside;
            for (int64_t k = 0; k < count; k++)
                filled[places[k]] = logarithms ? logf(x[k]) : x[k];
        }
    }
    free(memory.data);
    return 0;
}

/* The nonzeros of p - gold * e_target of each row, from out_start[i] on. names: the column of each of
the logits, or NULL where that is its place in the row. A row whose out_start is that of the next one
is left out; all others have one place more than COUNT, for the target. */
int64_t fill_sparse(const float *z, const int64_t *start, int64_t rows, int64_t size,
                    const int32_t *names, double alpha, const double *solution,
                    const int64_t *target, float gold, const int64_t *out_start, int32_t *columns,
                    float *values, int threads) {
    matrix all = {z, start, rows, size};
    mapping map = mapping_of(alpha);
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 1, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        int32_t *places = own_list(memory, 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            if (out_start[i] == out_start[i + 1])
                continue;
            int32_t *column = columns + out_start[i];
            float *p = values + out_start[i], missing = gold;
            solved_row found = solved(solution, rows, i);
            /* A thread that takes denormals for 0 may find fewer or more than COUNT. */
            int64_t room = out_start[i + 1] - out_start[i] - 1;
            int64_t count = select_above(row_of(all, i), length_of(all, i), found.cut, places);
            count = least(count, room);
            probabilities(row_of(all, i), places, count, found, map, p);
            for (int64_t k = 0; k < count; k++) {
                column[k] = names ? names[start[i] + places[k]] : places[k];
                if (column[k] == target[i]) {
                    p[k] -= gold;
                    missing = 0;
                }
            }
            for (; count <= room; count++, missing = 0) {
                column[count] = (int32_t)target[i];
                p[count] = -missing;
            }
        }
    }
    free(memory.data);
    return 0;
}

/* out [rows, size]: grad times p - q, q = smoothing / size everywhere and 1 - smoothing more at the
target; zeros where that is no class. */
int64_t row_loss_gradient(const float *z, int64_t rows, int64_t size, double alpha,
                          const double *solution, const float *grad, const int64_t *target,
                          double smoothing, float *out, int threads) {
    mapping map = mapping_of(alpha);
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 2, size + BLOCK);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        int32_t *places = own_list(memory, 0);
        float *p = own_list(memory, 1);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            float *filled = out + i * size, factor = grad[i];
            int counts = 0 <= target[i] && target[i] < size;
            float everywhere = counts ? (float)(-smoothing / size * factor) : 0;
            for (int64_t j = 0; j < size; j++)
                filled[j] = everywhere;
            if (!counts)
                continue;
            solved_row found = solved(solution, rows, i);
            int64_t count = select_above(z + i * size, size, found.cut, places);
            probabilities(z + i * size, places, count, found, map, p);
            for (int64_t k = 0; k < count; k++)
                filled[places[k]] += factor * p[k];
            filled[target[i]] -= factor * (float)(1 - smoothing);
        }
    }
    free(memory.data);
    return 0;
}

/* The gradient of alpha-entmax, see through_entmax. */
void entmax_gradient(const float *p, const float *grad, int64_t rows, int64_t size,
                     const double *alpha, int64_t alpha_step, float *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        through_entmax(p + i * size, grad + i * size, size, mapping_of(alpha[i * alpha_step]), 1,
                       out + i * size, out + i * size);
}
