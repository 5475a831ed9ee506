/* RMSNorm and gated RMSNorm of the rows of a matrix, as in reference/norms.py:

    y = g * x / RMS(x), RMS(x) = sqrt(<x, x> / size + eps), gated: times sigmoid(w * x). */

#include <math.h>
#include <stdint.h>

#include "power.h"
#include "threads.h"

enum { PART = 256 }; /* entries that are added up in single precision */

static float inverse_rms(const float *restrict x, int64_t size, double eps) {
    double total = 0;
    for (int64_t start = 0; start < size; start += PART) {
        int64_t end = start + PART < size ? start + PART : size;
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t j = start; j < end; j++)
            part += x[j] * x[j];
        total += part;
    }
    return (float)(1 / sqrt(total / size + eps));
}

/* gain, gate: [size]; gate may be NULL. */
void rms_norm(const float *z, /* rows * size */
              int64_t rows, int64_t size, const float *gain, /* size */
              const float *gate, /* size or NULL */
              double eps, float *out, /* rows * size */
              int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict x = z + i * size;
        float *restrict y = out + i * size, inverse = inverse_rms(x, size, eps);
        if (gate)
#pragma omp simd
            for (int64_t j = 0; j < size; j++)
                y[j] = sigmoid(x[j] * gate[j]) * x[j] * inverse * gain[j];
        else
#pragma omp simd
            for (int64_t j = 0; j < size; j++)
                y[j] = x[j] * inverse * gain[j];
    }
}

/* The gradients of one row; opened: memory for its gates. */
static void through_row(const float *restrict x, const float *restrict grad, int64_t size,
                        const float *restrict gain, const float *restrict gate, double eps,
                        float *restrict grad_x, double *restrict grad_gain,
                        double *restrict grad_gate, float *restrict opened) {
    float inverse = inverse_rms(x, size, eps);
    /* Not in a vectorised loop: with a gate of NULL, its masked loads make it some 50 times slower. */
    if (gate)
#pragma omp simd
        for (int64_t j = 0; j < size; j++)
            opened[j] = sigmoid(x[j] * gate[j]);
    else
        for (int64_t j = 0; j < size; j++)
            opened[j] = 1;
    double total = 0;
    for (int64_t start = 0; start < size; start += PART) {
        int64_t end = start + PART < size ? start + PART : size;
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t j = start; j < end; j++)
            part += grad[j] * opened[j] * x[j] * gain[j];
        total += part;
    }
    float along = (float)(total * inverse * inverse / size); /* through RMS(x) */
#pragma omp simd
    for (int64_t j = 0; j < size; j++) {
        float passed = grad[j] * opened[j], of_gain = passed * x[j] * inverse;
        grad_gain[j] += of_gain;
        grad_x[j] = (passed * gain[j] - x[j] * along) * inverse;
        opened[j] = of_gain * gain[j] * (1 - opened[j]); /* through the gate */
    }
    if (gate)
#pragma omp simd
        for (int64_t j = 0; j < size; j++) {
            grad_gate[j] += opened[j] * x[j];
            grad_x[j] += opened[j] * gate[j];
        }
}

/* grad_parameters: [threads, 2, size], the gradients of gain and gate, added to. */
int64_t rms_norm_gradient(const float *z, /* rows * size */
                          const float *grad, /* rows * size */
                          int64_t rows, int64_t size, const float *gain, /* size */
                          const float *gate, /* size or NULL */
                          double eps, float *grad_z, /* rows * size */
                          double *grad_parameters, /* threads * 2 * size */
                          int threads) {
    working_memory memory;
    int64_t failure = allocate(&memory, threads, 1, size);
    if (failure)
        return failure;
#pragma omp parallel num_threads(threads)
    {
        double *sums = grad_parameters + thread_number() * 2 * size;
        float *opened = own_list(memory, 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++)
            through_row(z + i * size, grad + i * size, size, gain, gate, eps, grad_z + i * size,
                        sums, sums + size, opened);
    }
    free(memory.data);
    return 0;
}
