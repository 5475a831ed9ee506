/* Random numbers by place: each is computed from a seed and the place where it is used, so that it
can be computed again instead of kept. */

#include <stdint.h>

/* 64 bits, by splitmix64 (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number
Generators"). */
static inline uint64_t random_at(uint64_t seed, uint64_t place) {
    uint64_t x = seed + (place + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* 32 bits: places 2 i and 2 i + 1 have the lower and the upper half of one number. */
static inline uint32_t random_half_at(uint64_t seed, uint64_t place) {
    return (uint32_t)(random_at(seed, place / 2) >> place % 2 * 32);
}

/* A random number of 32 bits is below this with the given probability in [0, 1). */
static inline uint32_t share_of_32_bits(double probability) {
    return (uint32_t)(probability * 0x1p32);
}
