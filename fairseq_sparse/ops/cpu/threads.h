/* Threads, where the compiler knows OpenMP, and the memory that they work in.

A kernel's parameters, and the size at each pointer, stand also in signatures.py. */

#include <stdint.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Under AddressSanitizer, each list is followed by GUARD numbers that must not be touched, so that
writing past its end is found, too. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GUARD = 16 };
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes) ((void)(from), (void)(bytes))
enum { GUARD = 0 };
#endif

/* Kernels that can fail return 0 on success, the number of bytes that they could not allocate, or
this if a row has more places than 32 bits can count. */
enum { TOO_LONG = -1 };

static int thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* Whether indices up to size, plus a few vectors, fit into 32 bits. */
static int fits_32_bits(int64_t size) { return size <= INT32_MAX - 64; }

/* Let only the first `length` numbers of a list be touched, of the `step` up to the next list. */
static void guard(const void *list, int64_t length, int64_t step) {
    ASAN_POISON_MEMORY_REGION((const float *)list + length, (step - length) * sizeof(float));
}

/* Lists of floats or 32-bit integers, `lists` for each thread. All are allocated at once, before the
threads start: a thread whose own allocation failed could not skip a loop that all must enter. */
typedef struct {
    float *data;
    int64_t length;
    int lists;
} working_memory;

/* Allocate lists with room for `length` numbers; returns 0, or what the kernel is to return. */
static int64_t allocate(working_memory *memory, int threads, int lists, int64_t length) {
    if (!fits_32_bits(length))
        return TOO_LONG;
    *memory = (working_memory){NULL, (length + 15) / 16 * 16 + GUARD, lists};
    int64_t all = (int64_t)threads * lists, each = memory->length * (int64_t)sizeof *memory->data;
    if ((uint64_t)(all * each) <= SIZE_MAX)
        memory->data = malloc((size_t)(all * each));
    if (!memory->data)
        return all * each;
    for (int64_t i = 0; GUARD && i < all; i++)
        guard(memory->data + i * memory->length, length, memory->length);
    return 0;
}

/* One of the lists of the thread that asks. */
static void *own_list(working_memory memory, int list) {
    return memory.data + ((int64_t)thread_number() * memory.lists + list) * memory.length;
}
