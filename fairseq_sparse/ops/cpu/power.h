/* Powers of numbers >= 0 that a compiler can turn into vector instructions. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* x ** exponent: FLAT for the exponent 0 (0 at x = 0), LINEAR for 1, GENERAL for any other. */
typedef enum { FLAT, LINEAR, GENERAL } power_kind;

/* alpha of a mapping, alpha - 1, beta = 1 / (alpha - 1), and how [x]_+ ** (beta - 1) is computed. */
typedef struct {
    double alpha;
    float rate, beta;
    power_kind kind;
} mapping;

static inline mapping mapping_of(double alpha) {
    return (mapping){alpha, (float)(alpha - 1), (float)(1 / (alpha - 1)),
                     alpha == 2 ? FLAT : alpha == 1.5 ? LINEAR : GENERAL};
}

/* 2 ** f for f in [-1/2, 1/2]: the Taylor series. */
static inline float power_of_two(float f) {
    return 1 +
           f * (6.93147181e-1f +
                f * (2.40226507e-1f +
                     f * (5.55041087e-2f +
                          f * (9.61812911e-3f +
                               f * (1.33335581e-3f +
                                    f * (1.54035304e-4f + f * 1.52527338e-5f))))));
}

/* x ** exponent for a normal x > 0; 0 where that is below 2 ** -126, infinite above 2 ** 127.

With x = 2 ** e * m, m in [sqrt(1/2), sqrt(2)), this is 2 ** (exponent * e + exponent * log2(m)); the
whole part of the sum is kept apart from the rest, so that no digits are lost where it is large. */
static inline float power_of_normal(float x, float exponent) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t e = (bits - 0x3f3504f3) >> 23; /* 0x3f3504f3 is sqrt(1/2) */
    bits -= e * (1 << 23); /* a negative number must not be shifted */
    float m;
    memcpy(&m, &bits, sizeof m);
    /* The series of artanh, whose next term is below 1e-9. */
    float s = (m - 1) / (m + 1), t = s * s;
    float series = 1 + t * (1 / 3.0f + t * (1 / 5.0f + t * (1 / 7.0f + t * (1 / 9.0f))));
    float log2_m = 2.885390082f * s * series;

    float whole = exponent * (float)e;
    float lost = fmaf(exponent, (float)e, -whole);
    float y = whole + exponent * log2_m;
    int in_range = y >= -126 && y < 127.5f;
    float n = nearbyintf(in_range ? y : 0);
    float f = !in_range ? 0 : (whole - n) + fmaf(exponent, log2_m, lost); /* in [-1/2, 1/2] */
    float power = power_of_two(f);
    memcpy(&bits, &power, sizeof bits);
    bits += (int32_t)n * (1 << 23);
    memcpy(&power, &bits, sizeof power);
    return in_range ? power : y < 0 ? 0 : INFINITY;
}

static inline float positive_power(float x, float exponent, power_kind kind) {
    if (kind == LINEAR)
        return x;
    if (kind == FLAT)
        return x != x ? x : x > 0;
    int is_normal = x > 1.2e-38f && x < INFINITY;
    float power = power_of_normal(is_normal ? x : 1, exponent);
    return is_normal ? power : x;
}
