/* Dropout, see dropout.py. */

#include <stdint.h>
#include <string.h>

#include "random.h"

enum { PAIRS = 128 };

/* out = x times 0 or 1 / (1 - probability), as random_half_at decides: both halves of each number
are used, which lie in memory in this order on a little-endian processor. */
void dropout(const float *x, int64_t size, double probability, int64_t seed, float *out,
             int threads) {
    float factor = (float)(1 / (1 - probability));
    uint32_t least_kept = share_of_32_bits(probability);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t start = 0; start < size; start += 2 * PAIRS) {
        uint64_t pairs[PAIRS];
        uint32_t numbers[2 * PAIRS];
#pragma omp simd
        for (int64_t i = 0; i < PAIRS; i++)
            pairs[i] = random_at((uint64_t)seed, start / 2 + i);
        memcpy(numbers, pairs, sizeof numbers);
        int64_t count = size - start < 2 * PAIRS ? size - start : 2 * PAIRS;
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            out[start + j] = x[start + j] * (numbers[j] < least_kept ? 0 : factor);
    }
}
