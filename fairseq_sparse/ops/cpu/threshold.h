/* The threshold of a row of numbers, and the entries above it. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "power.h"

enum {
    BLOCK = 16,       /* entries that are compared with the cut at once: most blocks have none above */
    PART = 256,       /* entries that are added up in single precision */
    MAX_STEPS = 64,   /* most Newton steps; convex, from the left, about five are taken */
    STRANDS = 16,     /* a first bound of tau is found among the maxima of this many entries each */
    SHORT_ROW = 128,  /* up to this length, that bound costs more than it saves */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The places of the entries that are not <= cut, so also of each NaN; all if the cut is NaN. */
static int64_t select_above(const float *restrict z, int64_t size, float cut,
                            int32_t *restrict places) {
    int64_t count = 0, j = 0;
#ifdef __AVX512F__
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 cuts = _mm512_set1_ps(cut);
    /* 16 places are written at once, of which the first ones count; there is room up to j + 16. */
    for (; j + BLOCK <= size; j += BLOCK) {
        __mmask16 above = _mm512_cmp_ps_mask(_mm512_loadu_ps(z + j), cuts, _CMP_NLE_UQ);
        __m512i found = _mm512_add_epi32(lanes, _mm512_set1_epi32((int32_t)j));
        _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(above, found));
        count += __builtin_popcount(above);
    }
#else
    for (; j + BLOCK <= size; j += BLOCK) {
        int any = 0;
#pragma omp simd reduction(| : any)
        for (int k = 0; k < BLOCK; k++)
            any |= !(z[j + k] <= cut);
        if (!any)
            continue;
        for (int k = 0; k < BLOCK; k++) {
            places[count] = (int32_t)(j + k);
            count += !(z[j + k] <= cut);
        }
    }
#endif
    for (; j < size; j++) {
        places[count] = (int32_t)j;
        count += !(z[j] <= cut);
    }
    return count;
}

/* The maxima of STRANDS entries each, those that lie size / STRANDS apart; returns how many. */
static int64_t strand_maxima(const float *restrict z, int64_t size, float *restrict maxima) {
    int64_t strands = size / STRANDS;
    memcpy(maxima, z, strands * sizeof *maxima);
    for (int64_t start = strands; start + strands <= size; start += strands)
#pragma omp simd
        for (int64_t j = 0; j < strands; j++)
            maxima[j] = z[start + j] > maxima[j] ? z[start + j] : maxima[j];
    return strands;
}

/* Fill numbers up to a multiple of BLOCK by ones below any threshold; returns how many there are. */
static int64_t padded(float *x, int64_t count) {
    for (; count % BLOCK; count++)
        x[count] = -2;
    return count;
}

/* Sums over some numbers; a count that is a multiple of BLOCK leaves no vector half full. */
typedef struct {
    double weights;   /* [x - tau]_+ ** (beta - 1) */
    double weighted;  /* x times that */
    double total;     /* [x - tau]_+ ** beta */
    double power;     /* [x - tau]_+ ** (beta + 1) */
} sums;

/* In single precision, so only for few numbers. */
static inline sums add_up_few_as(const float *restrict x, int64_t count, float tau,
                                 power_kind kind, float beta) {
    float weights = 0, weighted = 0, total = 0, power = 0;
#pragma omp simd reduction(+ : weights, weighted, total, power)
    for (int64_t k = 0; k < count; k++) {
        float above = x[k] - tau;
        above = above < 0 ? 0 : above;
        float weight = positive_power(above, beta - 1, kind);
        float p = weight * above;
        weights += weight;
        weighted += weight * x[k];
        total += p;
        power += p * above;
    }
    return (sums){weights, weighted, total, power};
}

/* The kind as a constant, so that each gets a loop of its own. */
static sums add_up_few(const float *x, int64_t count, float tau, mapping map) {
    switch (map.kind) {
    case FLAT: return add_up_few_as(x, count, tau, FLAT, map.beta);
    case LINEAR: return add_up_few_as(x, count, tau, LINEAR, map.beta);
    default: return add_up_few_as(x, count, tau, GENERAL, map.beta);
    }
}

static sums add_up(const float *x, int64_t count, float tau, mapping map) {
    sums all = {0, 0, 0, 0};
    for (int64_t start = 0; start < count; start += PART) {
        sums few = add_up_few(x + start, least(PART, count - start), tau, map);
        all.weights += few.weights;
        all.weighted += few.weighted;
        all.total += few.total;
        all.power += few.power;
    }
    return all;
}

/* total ** (2 - alpha), without the slow pow where it can be. */
static double root_of(double total, mapping map) {
    return map.kind == FLAT ? 1 : map.kind == LINEAR ? sqrt(total) : pow(total, 2 - map.alpha);
}

static double newton_step(sums s, mapping map) {
    return (s.weighted - root_of(s.total, map)) / s.weights;
}

/* The root of ||[x - tau]_+||_beta = 1, from the left, to single precision. */
static float find_threshold(const float *x, int64_t count, float tau, mapping map) {
    for (int step = 0; step < MAX_STEPS; step++) {
        float next = (float)newton_step(add_up(x, count, tau, map), map);
        if (!(next > tau))
            break;
        float moved = next - tau;
        tau = next;
        /* After so small a step the remaining error is of the order of its square, unless
        (alpha > 1.5) the slope jumps where an entry leaves the support. */
        if (map.alpha <= 1.5 && moved * map.beta < -1e-4f * tau)
            break;
    }
    return tau;
}

/* The maximum of a row; NaN if it holds a NaN. */
static float maximum_of(const float *restrict z, int64_t size) {
    float maximum = -INFINITY;
    int is_nan = 0;
#pragma omp simd reduction(max : maximum) reduction(| : is_nan)
    for (int64_t j = 0; j < size; j++) {
        maximum = z[j] > maximum ? z[j] : maximum;
        is_nan |= z[j] != z[j];
    }
    return is_nan ? NAN : maximum;
}

/* A bound below which no logit of a row is in the support, from some of its entries: with more of
them tau can only be greater. A few entries too many are let in rather than one too few. */
static float support_floor(const float *restrict z, int64_t size, float maximum, mapping map,
                           float *restrict x) {
    float width = map.beta, tau = -1;
    if (size > SHORT_ROW) {
        int64_t count = 0, strands = strand_maxima(z, size, x);
        for (int64_t j = 0; j < strands; j++) {
            x[count] = map.rate * (x[j] - maximum);
            count += x[count] > -1;
        }
        tau = find_threshold(x, padded(x, count), tau, map);
    }
    return maximum + tau * width - 1e-6f * (fabsf(maximum) + width);
}

/* The greatest logit whose weight is 0 in alpha-ReLU, up to a few roundings: too small a value
costs only an entry of weight 0. The steps are limited in case denormals are flushed to 0. */
static float greatest_zero(mapping map, float tau) {
    float cut = tau * map.beta;
    for (int step = 0; step < 8 && map.rate * cut - tau > 0; step++)
        cut = nextafterf(cut, -INFINITY);
    for (int step = 0; step < 8 && map.rate * nextafterf(cut, INFINITY) - tau <= 0; step++)
        cut = nextafterf(cut, INFINITY);
    return cut;
}
