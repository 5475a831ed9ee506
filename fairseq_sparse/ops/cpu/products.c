/* Products of a sparse matrix with a dense one. A sparse matrix has rows of (index, value) pairs, the
i-th from start[i] to start[i + 1]; an index may occur twice. */

#include <stdint.h>
#include <string.h>

#include "threads.h"

static void add_row(const int32_t *restrict index, const float *restrict values, int64_t count,
                    const float *restrict dense, int64_t width, float *restrict sum) {
    int64_t e = 0;
    /* Four at a time: the sum is read and written once for all of them. */
    for (; e + 4 <= count; e += 4) {
        const float *a = dense + index[e] * width, *b = dense + index[e + 1] * width;
        const float *c = dense + index[e + 2] * width, *d = dense + index[e + 3] * width;
        float va = values[e], vb = values[e + 1], vc = values[e + 2], vd = values[e + 3];
#pragma omp simd
        for (int64_t k = 0; k < width; k++)
            sum[k] += va * a[k] + vb * b[k] + vc * c[k] + vd * d[k];
    }
    for (; e < count; e++) {
        const float *a = dense + index[e] * width;
        float va = values[e];
#pragma omp simd
        for (int64_t k = 0; k < width; k++)
            sum[k] += va * a[k];
    }
}

/* out [rows, width] = base [width] in each row + sparse [rows, size] times dense [size, width]. */
void product(const int64_t *start, /* rows + 1 */
             const int32_t *index, /* start[rows] */
             const float *values, /* start[rows] */
             int64_t rows, const float *dense, /* size * width */
             int64_t size, int64_t width, const float *base, /* width */
             float *out, /* rows * width */
             int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 64)
    for (int64_t i = 0; i < rows; i++) {
        memcpy(out + i * width, base, width * sizeof *out);
        add_row(index + start[i], values + start[i], start[i + 1] - start[i], dense, width,
                out + i * width);
    }
}

/* The transpose of a matrix [rows, size] whose rows are multiplied by row_scale, by counting; on one
thread. */
int64_t transpose(const int64_t *start, /* rows + 1 */
                  const int32_t *columns, /* start[rows] */
                  const float *values, /* start[rows] */
                  int64_t rows, int64_t size, const float *row_scale, /* rows */
                  int64_t *column_start, /* size + 1 */
                  int32_t *row_index, /* start[rows] */
                  float *scaled, /* start[rows] */
                  int threads) {
    if (!fits_32_bits(rows))
        return TOO_LONG;
    /* column_start[j + 1] is first where column j begins, and moves on to where it ends. */
    memset(column_start, 0, (size + 1) * sizeof *column_start);
    for (int64_t k = 0; k < start[rows]; k++)
        if (columns[k] < size - 1)
            column_start[columns[k] + (int64_t)2]++;
    for (int64_t j = 2; j <= size; j++)
        column_start[j] += column_start[j - 1];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = start[i]; k < start[i + 1]; k++) {
            int64_t place = column_start[columns[k] + (int64_t)1]++;
            row_index[place] = (int32_t)i;
            scaled[place] = values[k] * row_scale[i];
        }
    return 0;
}

/* out [rows, size] = row_scale times (the sparse matrix + base, which is added to every entry). */
void to_dense(const int64_t *start, /* rows + 1 */
              const int32_t *columns, /* start[rows] */
              const float *values, /* start[rows] */
              int64_t rows, int64_t size, const float *row_scale, /* rows */
              float base, float *out, /* rows * size */
              int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float *row = out + i * size, everywhere = base * row_scale[i];
        for (int64_t j = 0; j < size; j++)
            row[j] = everywhere;
        for (int64_t k = start[i]; k < start[i + 1]; k++)
            row[columns[k]] += values[k] * row_scale[i];
    }
}
