/* Products of matrices in tiles of ROWS x 2 vectors, which fill the registers, and sums of rows,
which are used where they lie. */

#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16, ROWS = 8 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
typedef float lane __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum { PANEL = 2 * LANES }; /* columns of a tile */

/* A tensor [batch, heads, time, dim], whose last dimension is contiguous. */
typedef struct {
    float *data;
    const int64_t *step; /* in batch, heads and time */
} tensor;

static float *row_at(tensor x, int64_t batch, int64_t head, int64_t time) {
    return x.data + batch * x.step[0] + head * x.step[1] + time * x.step[2];
}

static int64_t up_to(int64_t size, int64_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/* Panels [dim, PANEL] of PANEL rows each, times scale; missing rows of the last one are 0. */
static void pack_panels(const float *rows, int64_t step, int64_t count, int64_t dim, float scale,
                        float *restrict panels) {
    for (int64_t first = 0; first < count; first += PANEL, panels += dim * PANEL) {
        int64_t here = count - first < PANEL ? count - first : PANEL;
        if (here < PANEL)
            memset(panels, 0, dim * PANEL * sizeof *panels);
        for (int64_t c = 0; c < dim; c += 16)
            for (int64_t j = 0; j < here; j++)
                for (int64_t k = 0; k < 16; k++)
                    panels[(c + k) * PANEL + j] = scale * rows[(first + j) * step + c + k];
    }
}

static void pack_rows(const float *rows, int64_t step, int64_t count, int64_t dim, float *packed) {
    for (int64_t i = 0; i < count; i++)
        memcpy(packed + i * dim, rows + i * step, dim * sizeof *packed);
}

/* out [ROWS, step] = rows times each panel. */
static void times_panels(const float *const *rows, const float *panels, int64_t count, int64_t dim,
                         float *out, int64_t step) {
    for (int64_t panel = 0; panel < count; panel++, panels += dim * PANEL, out += PANEL) {
        lane sum[ROWS][2] = {0};
        for (int64_t k = 0; k < dim; k++) {
            lane left = *(const lane *)(panels + k * PANEL);
            lane right = *(const lane *)(panels + k * PANEL + LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                sum[r][0] += rows[r][k] * left;
                sum[r][1] += rows[r][k] * right;
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            *(lane *)(out + r * step) = sum[r][0];
            *(lane *)(out + r * step + LANES) = sum[r][1];
        }
    }
}

static inline __attribute__((always_inline)) void
add_rows_as(int lanes, float *sum, const int32_t *places, const float *factors, int64_t count,
            const float *rows, int64_t step) {
    lane even[4], odd[4];
    for (int l = 0; l < lanes; l++) {
        even[l] = *(lane *)(sum + l * LANES);
        odd[l] = (lane){0};
    }
    int64_t k = 0;
    for (; k + 1 < count; k += 2) {
        const float *first = rows + places[k] * step, *second = rows + places[k + 1] * step;
#pragma GCC unroll 4
        for (int l = 0; l < lanes; l++) {
            even[l] += factors[k] * *(const lane *)(first + l * LANES);
            odd[l] += factors[k + 1] * *(const lane *)(second + l * LANES);
        }
    }
    for (int l = 0; l < lanes; l++) {
        if (k < count)
            even[l] += factors[k] * *(const lane *)(rows + places[k] * step + l * LANES);
        *(lane *)(sum + l * LANES) = even[l] + odd[l];
    }
}

/* sum [dim] += the sum of factors[k] * rows[places[k]], which lie step apart. */
static void add_rows(float *sum, const int32_t *places, const float *factors, int64_t count,
                     const float *rows, int64_t step, int64_t dim) {
    int64_t c = 0;
    for (; c + 4 * LANES <= dim; c += 4 * LANES)
        add_rows_as(4, sum + c, places, factors, count, rows + c, step);
    for (; c + 2 * LANES <= dim; c += 2 * LANES)
        add_rows_as(2, sum + c, places, factors, count, rows + c, step);
    for (; c < dim; c += LANES)
        add_rows_as(1, sum + c, places, factors, count, rows + c, step);
}

static inline float dot(const float *a, const float *b, int64_t dim) {
    lane sum = {0};
    for (int64_t c = 0; c < dim; c += LANES)
        sum += *(const lane *)(a + c) * *(const lane *)(b + c);
    float total = 0;
    for (int l = 0; l < LANES; l++)
        total += sum[l];
    return total;
}
