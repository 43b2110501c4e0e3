/* What this machine can do at most: bytes read from memory and float32 multiply-adds, a second each, of one thread. */

#include <stddef.h>

#if defined(__AVX512F__)
#define N_LANES 16
#elif defined(__AVX__)
#define N_LANES 8
#else
#define N_LANES 4
#endif

typedef float lanes __attribute__((vector_size(N_LANES * sizeof(float))));
typedef long long words __attribute__((vector_size(N_LANES * sizeof(float))));

/* Twelve sums that do not wait for each other: enough to hide the latency of two multiply-add units. */
#define N_SUMS 12

int probe_n_lanes(void) { return N_LANES; }

/* Multiply and add n times in each lane of each sum; returns the multiply-adds done. */
double probe_multiply_add(long n, float *result) {
    lanes sum[N_SUMS], factor, term;
    for (int lane = 0; lane < N_LANES; lane++) {
        factor[lane] = 0.999f;
        term[lane] = 0.001f * (float) lane;
    }
    for (int i = 0; i < N_SUMS; i++) sum[i] = term + (float) i;
    for (long turn = 0; turn < n; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++) sum[i] = sum[i] * factor + term;
    }
    for (int i = 1; i < N_SUMS; i++) sum[0] += sum[i];
    *result = 0;
    for (int lane = 0; lane < N_LANES; lane++) *result += sum[0][lane];
    return (double) n * N_SUMS * N_LANES;
}

/* Read nbytes (a multiple of 8 vectors) once, in order; returns the bytes read. */
double probe_read(const void *memory, size_t nbytes, long long *result) {
    const words *at = memory;
    words seen[8] = {{0}};
    size_t n = nbytes / sizeof(words) / 8;
    for (size_t turn = 0; turn < n; turn++, at += 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) seen[i] ^= at[i];
    }
    for (int i = 1; i < 8; i++) seen[0] ^= seen[i];
    *result = seen[0][0];
    return (double) n * 8 * sizeof(words);
}
