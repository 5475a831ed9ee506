/* Threads, where the compiler knows OpenMP. */

#ifdef _OPENMP
#include <omp.h>
#endif

static int thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
