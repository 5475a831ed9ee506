/* alpha-entmax of one row, for 1 < alpha <= 2.

A row is first solved, which leaves six numbers, and then filled in as

    p_j = scale * [(alpha - 1) (z_j - shift) - tau]_+ ** (1 / (alpha - 1))   where z_j > cut.

The search for tau is that of reference/thresholds.py: Newton steps from the left, on few candidates. */

#include "threshold.h"

/* The rows of a solution, each with one number for each row of logits. */
enum { SHIFT, TAU, SCALE, CUT, CONJUGATE, COUNT };

/* add_up with a threshold and sums in double precision. */
static inline sums add_up_exactly_as(const float *restrict x, int64_t count, double tau,
                                     power_kind kind, float beta) {
    double weights = 0, weighted = 0, total = 0, power = 0;
#pragma omp simd reduction(+ : weights, weighted, total, power)
    for (int64_t k = 0; k < count; k++) {
        double above = x[k] - tau;
        above = above < 0 ? 0 : above;
        double weight = kind == LINEAR ? above : positive_power((float)above, beta - 1, kind);
        double p = weight * above;
        weights += weight;
        weighted += weight * x[k];
        total += p;
        power += p * above;
    }
    return (sums){weights, weighted, total, power};
}

static sums add_up_exactly(const float *x, int64_t count, double tau, mapping map) {
    switch (map.kind) {
    case FLAT: return add_up_exactly_as(x, count, tau, FLAT, map.beta);
    case LINEAR: return add_up_exactly_as(x, count, tau, LINEAR, map.beta);
    default: return add_up_exactly_as(x, count, tau, GENERAL, map.beta);
    }
}

/* p before it is multiplied by the scale, of a kind that is GENERAL. */
static inline float unscaled_power(float above, float beta) {
    return above * positive_power(above, beta - 1, GENERAL);
}

/* The sum of these p. A power multiplies the rounding of its base by beta, alike in equal entries, so
that p sums to 1 only if it is divided by the sum of these very numbers. */
static double total_of_powers(const float *restrict x, int64_t count, double tau, float beta) {
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t k = 0; k < count; k++) {
        double above = x[k] - tau;
        total += unscaled_power(above < 0 ? 0 : (float)above, beta);
    }
    return total;
}

static void solve_entmax_row(const float *restrict z, int64_t size, mapping map, double *solution,
                             int64_t step, int32_t *restrict places, float *restrict x) {
    float maximum = maximum_of(z, size);
    if (!(fabsf(maximum) < INFINITY)) {
        int empty = maximum == -INFINITY;
        solution[SHIFT * step] = empty ? 0 : maximum;
        solution[TAU * step] = empty ? -1 : NAN;
        solution[SCALE * step] = 1;
        solution[CUT * step] = empty ? INFINITY : NAN; /* nothing, or everything as NaN */
        solution[CONJUGATE * step] = empty ? 0 : NAN;
        solution[COUNT * step] = empty ? 0 : size;
        return;
    }
    float floor = support_floor(z, size, maximum, map, x);
    int64_t candidates = select_above(z, size, floor, places);
    for (int64_t k = 0; k < candidates; k++)
        x[k] = map.rate * (z[places[k]] - maximum);
    int64_t count_padded = padded(x, candidates);
    float start = map.rate * (floor - maximum);
    double tau = find_threshold(x, count_padded, start > -1 ? start : -1, map);
    /* Take the last steps in double precision, until one moves tau so little that the next would be
    negligible, and adjust the sums. The limit is lower where these have kinks (alpha > 1.5),
    because Newton's method converges more slowly there. */
    sums s;
    double moved;
    int steps = 0;
    do {
        s = add_up_exactly(x, count_padded, tau, map);
        moved = newton_step(s, map) - tau;
        tau += moved;
    } while (fabs(moved) > (map.alpha > 1.5 ? 1e-9 : 1e-7) && ++steps < MAX_STEPS);
    s.power -= (map.beta + 1) * moved * s.total;
    s.total -= map.beta * moved * s.weights;
    /* Rounded down: an entry too many gets the probability 0. */
    float cut = maximum + (float)tau * map.beta - 2.4e-7f * (fabsf(maximum) + map.beta);
    int64_t count = 0;
    for (int64_t k = 0; k < candidates; k++)
        count += !(z[places[k]] <= cut);
    /* <p, z - maximum> + H_alpha(p), p = scale [x - tau]_+ ** beta: sum p x = sum p above + tau */
    double scale = 1 / s.total, entropy_scale = 1 / (map.alpha * (map.alpha - 1));
    double score = (s.power * scale + tau) / (map.alpha - 1);
    double entropy = (1 - s.power * scale * scale / root_of(scale, map)) * entropy_scale;
    solution[SHIFT * step] = maximum;
    solution[TAU * step] = tau;
    solution[SCALE * step] =
        map.kind == GENERAL ? 1 / total_of_powers(x, count_padded, tau, map.beta) : scale;
    solution[CUT * step] = cut;
    solution[CONJUGATE * step] = score + entropy;
    solution[COUNT * step] = count;
}

typedef struct {
    double tau;
    float shift, scale, cut;
} solved_row;

static solved_row solved(const double *solution, int64_t rows, int64_t i) {
    return (solved_row){
        solution[TAU * rows + i],
        solution[SHIFT * rows + i],
        solution[SCALE * rows + i],
        solution[CUT * rows + i],
    };
}

/* p at some places of a row, one after the other. */
static void probabilities(const float *restrict z, const int32_t *restrict places, int64_t count,
                          solved_row row, mapping map, float *restrict p) {
    for (int64_t k = 0; k < count; k++) {
        double above = map.rate * (z[places[k]] - row.shift) - row.tau;
        p[k] = above < 0 ? 0 : (float)above;
    }
    switch (map.kind) {
    case FLAT: break;
    case LINEAR:
        for (int64_t k = 0; k < count; k++)
            p[k] *= p[k];
        break;
    default:
#pragma omp simd
        for (int64_t k = 0; k < count; k++)
            p[k] = unscaled_power(p[k], map.beta);
    }
    for (int64_t k = 0; k < count; k++)
        p[k] *= row.scale;
}

/* p ** exponent, the exponent being 2 - alpha and the kind that of alpha; 0 where p is 0. */
static inline float slope_of(float p, float exponent, power_kind kind) {
    int inside = !(p <= 0); /* a NaN stays one */
    float slope = kind == LINEAR ? sqrtf(p) : positive_power(p, exponent, kind);
    return inside ? slope : 0;
}

/* The gradient of a row of alpha-entmax (S2S, Prop. 1), s (g - <s, g> / sum s) with
s = p ** (2 - alpha), times scale. slopes: memory for s; out may be grad or slopes. Where p is 0,
grad is not looked at. */
static inline void through_entmax_as(const float *p, const float *grad, int64_t size,
                                     float exponent, power_kind kind, float scale, float *slopes,
                                     float *out) {
    double total = 0, product = 0;
    for (int64_t start = 0; start < size; start += PART) {
        int64_t end = least(start + PART, size);
        float part = 0, part_product = 0;
#pragma omp simd reduction(+ : part, part_product)
        for (int64_t j = start; j < end; j++) {
            float s = slope_of(p[j], exponent, kind);
            slopes[j] = s;
            part += s;
            part_product += s <= 0 ? 0 : s * grad[j];
        }
        total += part;
        product += part_product;
    }
    float mean = total > 0 ? (float)(product / total) : 0;
#pragma omp simd
    for (int64_t j = 0; j < size; j++)
        out[j] = slopes[j] <= 0 ? 0 : scale * slopes[j] * (grad[j] - mean);
}

/* The kind as a constant, so that each gets a loop of its own. */
static void through_entmax(const float *p, const float *grad, int64_t size, mapping map,
                           float scale, float *slopes, float *out) {
    float exponent = 2 - (float)map.alpha;
    switch (map.kind) {
    case FLAT: through_entmax_as(p, grad, size, exponent, FLAT, scale, slopes, out); break;
    case LINEAR: through_entmax_as(p, grad, size, exponent, LINEAR, scale, slopes, out); break;
    default: through_entmax_as(p, grad, size, exponent, GENERAL, scale, slopes, out);
    }
}
