/* The SPCP head on a CPU, float32, without ever holding the B x K x D contributions.
 *
 * With c[b,k,d] = W[k,d] * h[b,d]:
 *   spcp_clip         z[b,k]  = bias[k] + sum_d min(c, lam)                      (dense: small batches, few classes)
 *   spcp_excess       z[b,k] -= sum_d max(c - lam, 0)                            (corrects a GEMM, otherwise)
 *   spcp_excess_grad  dh, dW -= the terms of g W and g' h for which c > lam      (corrects two GEMMs, always)
 *   spcp_quantile     per sample, the quantile of its K*D contributions, exact, linearly interpolated
 *   spcp_top          per sample, its largest contributions
 *
 * The last four are sparse and exact by one idea. Samples are packed side by side ("lanes") together with the
 * extremes of each feature over them. The product is monotone and so is its rounding, so max_b fl(W[k,d] * h[b,d])
 * is reached at an extreme: one comparison tells whether any lane exceeds at (k, d), and most pairs are skipped.
 *
 * Arrays are row-major. Entry points return 0, or -1 when memory ran out. Products are rounded before they are
 * compared (compile with -ffp-contract=off), so that every path agrees on which side of lam a contribution lies.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VECTORIZED __attribute__((noinline)) /* the compiler vectorises a loop best in a separate function */

#define LANES 64          /* samples side by side, a bit each in lanes_above */
#define VECTORS (LANES / 8)
#define CLASS_TILE 8      /* classes between two changes of lanes, so that both stay in cache */
#define TILE 128          /* features at a time */
#define CANCELLED 4       /* times as large as the rest, an excess has cost the logit two bits */
#define SMALL 32          /* a bracket of so few contributions is sorted out one by one */
#define GLANCE (1 << 16)  /* contributions of a first look at a sample: they stay in cache for the next samples */

typedef int64_t i64;
typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(32), aligned(4), may_alias));

static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

/* Memory that starts on a cache line: vectors that straddle two take twice the time. */
static void *scratch_of(i64 bytes) { return aligned_alloc(64, ceil_div(bytes, 64) * 64); }

#define EIGHT 1, 1, 1, 1, 1, 1, 1, 1
static const float ONES[LANES] = {EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT};

/* ---- lanes ------------------------------------------------------------------------------------------------ */

/* lanes[i][j] = rows[first + j][i]; past the last row, the last row again. */
VECTORIZED static void pack(const float *restrict rows, i64 count, i64 width, i64 first, float *restrict lanes) {
    for (i64 i0 = 0; i0 < width; i0 += 16)
        for (i64 j = 0; j < LANES; j++) {
            const float *restrict row = rows + least(first + j, count - 1) * width;
            for (i64 i = i0; i < least(i0 + 16, width); i++) lanes[i * LANES + j] = row[i];
        }
}

/* The extremes of scale[j] * lanes[i][j] over j, for every i. */
VECTORIZED static void extremes(const float *restrict lanes, i64 width, const float *restrict scale,
                                float *restrict high, float *restrict low) {
    for (i64 i = 0; i < width; i++) {
        const float *restrict lane = lanes + i * LANES;
        float above = -INFINITY, below = INFINITY;
#pragma omp simd reduction(max : above) reduction(min : below)
        for (int j = 0; j < LANES; j++) {
            float x = scale[j] * lane[j];
            above = x > above ? x : above;
            below = x < below ? x : below;
        }
        high[i] = above;
        low[i] = below;
    }
}

/* The positions of the n flags that are set; there must be room for eight more. */
static inline i64 positions(uint8_t *restrict flags, i64 n, int32_t *restrict at) {
    memset(flags + n, 0, 8);
    i64 count = 0;
    for (i64 i = 0; i < n; i += 8) {
        uint64_t eight;
        memcpy(&eight, flags + i, 8);
        for (; eight; eight &= eight - 1) at[count++] = (int32_t)(i + (__builtin_ctzll(eight) >> 3));
    }
    return count;
}

/* The features d, of at most TILE, at which w[d] * (some lane) > lam. */
VECTORIZED static i64 exceeding(const float *restrict w, const float *restrict high, const float *restrict low,
                                float lam, i64 n, int32_t *restrict at) {
    uint8_t flags[TILE + 8];
    for (i64 d = 0; d < n; d++) flags[d] = (w[d] * high[d] > lam) | (w[d] * low[d] > lam);
    return positions(flags, n, at);
}

/* ---- the clip --------------------------------------------------------------------------------------------- */

static inline float clipped(float c, float lam) { return c > lam ? lam : c; } /* NaN stays NaN */

/* out[j] = sum_d min(w[d] * h[j][d], lam) for up to four rows of h: each weight is read once for four. */
VECTORIZED static void clipped_sums(const float *restrict w, const float *restrict h, float lam, i64 D, i64 rows,
                                    float *restrict out) {
    if (rows == 4) {
        const float *h0 = h, *h1 = h + D, *h2 = h + 2 * D, *h3 = h + 3 * D;
        float z0 = 0, z1 = 0, z2 = 0, z3 = 0;
        for (i64 d = 0; d < D; d++) {
            z0 += clipped(w[d] * h0[d], lam);
            z1 += clipped(w[d] * h1[d], lam);
            z2 += clipped(w[d] * h2[d], lam);
            z3 += clipped(w[d] * h3[d], lam);
        }
        out[0] = z0, out[1] = z1, out[2] = z2, out[3] = z3;
    } else
        for (i64 j = 0; j < rows; j++) {
            float z = 0;
            for (i64 d = 0; d < D; d++) z += clipped(w[d] * h[j * D + d], lam);
            out[j] = z;
        }
}

int spcp_clip(const float *h, const float *W, const float *bias, float lam, float *z, i64 B, i64 D, i64 K,
              int threads) {
#pragma omp parallel for collapse(2) num_threads(threads)
    for (i64 b0 = 0; b0 < B; b0 += 32) /* tiles of 32 samples and 64 classes: four samples stay in L1, the weights in L2 */
        for (i64 k0 = 0; k0 < K; k0 += 64)
            for (i64 b = b0; b < least(b0 + 32, B); b += 4)
                for (i64 k = k0; k < least(k0 + 64, K); k++) {
                    float sums[4];
                    const i64 rows = least(4, B - b);
                    clipped_sums(W + k * D, h + b * D, lam, D, rows, sums);
                    for (i64 j = 0; j < rows; j++) z[(b + j) * K + k] = sums[j] + (bias ? bias[k] : 0);
                }
    return 0;
}

/* sum[j] += the sum over the listed features of max(w[d] * lanes[d][j] - lam, 0) */
VECTORIZED static void add_excess(const float *restrict w, const float *restrict lanes, float lam,
                                  const int32_t *restrict at, i64 count, vec *restrict sum) {
    vec local[VECTORS];
    for (int v = 0; v < VECTORS; v++) local[v] = sum[v];
    for (i64 i = 0; i < count; i++) {
        const vec *restrict lane = (const vec *)(lanes + (i64)at[i] * LANES);
        const float x = w[at[i]];
        for (int v = 0; v < VECTORS; v++) {
            const vec over = x * lane[v] - lam;
            local[v] += (vec)((ivec)over & (over > 0));
        }
    }
    for (int v = 0; v < VECTORS; v++) sum[v] = local[v];
}

/* Where the excess is larger than what it leaves (an outlier among the samples), rounding is left, and where a sum
 * overflowed, infinity or NaN; there the logit is summed up anew, so that it does not depend on the batch it is in. */
int spcp_excess(const float *h, const float *W, const float *bias, float lam, float *z, i64 B, i64 D, i64 K,
                int threads) {
    const i64 groups = ceil_div(B, LANES);
    float *lanes = scratch_of(sizeof(float) * groups * D * (LANES + 2));
    if (!lanes) return -1;
    float *high = lanes + groups * D * LANES, *low = high + groups * D;
#pragma omp parallel for num_threads(threads)
    for (i64 g = 0; g < groups; g++) {
        pack(h, B, D, g * LANES, lanes + g * D * LANES);
        extremes(lanes + g * D * LANES, D, ONES, high + g * D, low + g * D);
    }
#pragma omp parallel for num_threads(threads)
    for (i64 k0 = 0; k0 < K; k0 += CLASS_TILE)
        for (i64 g = 0; g < groups; g++)
            for (i64 k = k0; k < least(k0 + CLASS_TILE, K); k++) {
                vec sum[VECTORS] = {{0}};
                for (i64 d = g * D, w = k * D; w < (k + 1) * D; d += TILE, w += TILE) {
                    int32_t at[TILE];
                    const i64 count = exceeding(W + w, high + d, low + d, lam, least(TILE, (k + 1) * D - w), at);
                    if (count) add_excess(W + w, lanes + d * LANES, lam, at, count, sum);
                }
                for (i64 b = g * LANES; b < least((g + 1) * LANES, B); b++) {
                    const float over = ((float *)sum)[b % LANES], left = z[b * K + k] - over;
                    if (over <= CANCELLED * fabsf(left) && fabsf(left) <= FLT_MAX) z[b * K + k] = left;
                    else {
                        clipped_sums(W + k * D, h + b * D, lam, D, 1, z + b * K + k);
                        z[b * K + k] += bias ? bias[k] : 0;
                    }
                }
            }
    free(lanes);
    return 0;
}

/* At the listed features: grad_w[d] -= sum_j g[j] lanes[d][j] [c > lam]; grad_lanes[d][j] += g[j] w[d] [c > lam] */
VECTORIZED static void excess_grad(const float *restrict w, const float *restrict lanes, const vec *restrict g,
                                   float lam, const int32_t *restrict at, i64 count, float *restrict grad_w,
                                   float *restrict grad_lanes) {
    for (i64 i = 0; i < count; i++) {
        const vec *restrict lane = (const vec *)(lanes + (i64)at[i] * LANES);
        vec *restrict grad_lane = (vec *)(grad_lanes + (i64)at[i] * LANES);
        float x = w[at[i]];
        vec sum = {0};
        for (int v = 0; v < VECTORS; v++) {
            vec stopped = (vec)((ivec)g[v] & (x * lane[v] > lam));
            sum += stopped * lane[v];
            grad_lane[v] += stopped * x;
        }
        if (grad_w) grad_w[at[i]] -= ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }
}

/* A NULL gradient is not wanted. Threads share the features, not the samples: so no two write to the same place. */
int spcp_excess_grad(const float *h, const float *W, const float *g, float lam, float *grad_h, float *grad_W, i64 B,
                     i64 D, i64 K, int threads) {
    const i64 groups = ceil_div(B, LANES);
    float *lanes = scratch_of(sizeof(float) * groups * (D * (LANES + 2) + K * LANES));
    if (!lanes) return -1;
    float *g_lanes = lanes + groups * D * LANES, *high = g_lanes + groups * K * LANES, *low = high + groups * D;
#pragma omp parallel for num_threads(threads)
    for (i64 i = 0; i < groups; i++) {
        pack(h, B, D, i * LANES, lanes + i * D * LANES);
        extremes(lanes + i * D * LANES, D, ONES, high + i * D, low + i * D);
        pack(g, B, K, i * LANES, g_lanes + i * K * LANES);
        for (i64 k = 0; k < K; k++)
            for (i64 b = B; b < (i + 1) * LANES; b++) g_lanes[(i * K + k) * LANES + b % LANES] = 0;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (i64 d0 = 0; d0 < D; d0 += TILE) {
        int32_t at[TILE];
        float grad_lanes[TILE * LANES] __attribute__((aligned(64)));
        const i64 n = least(TILE, D - d0);
        for (i64 i = 0; i < groups; i++) {
            memset(grad_lanes, 0, sizeof grad_lanes);
            for (i64 k = 0; k < K; k++) {
                const float *w = W + k * D + d0;
                const i64 count = exceeding(w, high + i * D + d0, low + i * D + d0, lam, n, at);
                if (count)
                    excess_grad(w, lanes + (i * D + d0) * LANES, (vec *)(g_lanes + (i * K + k) * LANES), lam, at, count,
                                grad_W ? grad_W + k * D + d0 : NULL, grad_lanes);
            }
            for (i64 b = i * LANES; grad_h && b < least((i + 1) * LANES, B); b++)
                for (i64 d = 0; d < n; d++) grad_h[b * D + d0 + d] -= grad_lanes[d * LANES + b % LANES];
        }
    }
    free(lanes);
    return 0;
}

/* Whether all of x is finite. By its bits: arithmetic on infinities is what these compiler flags are free to change. */
VECTORIZED static int all_finite(const float *restrict x, i64 n) {
    uint32_t bad = 0;
    for (i64 i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* ---- the quantile ----------------------------------------------------------------------------------------- */

/* Floats in the order of their values as integers: halving an interval of them ends after at most 32 steps. */
static i64 key_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits < 0 ? -(i64)(bits & 0x7fffffff) : bits;
}
static float of_key(i64 key) {
    uint32_t bits = key < 0 ? 0x80000000u | (uint32_t)-key : (uint32_t)key;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* How many of h[d] * W[row][d] exceed t, in every step-th row. */
VECTORIZED static i64 count_above(const float *restrict h, const float *restrict W, i64 D, i64 rows, i64 step, float t) {
    i64 count = 0;
    for (i64 r = 0; r < rows; r++) {
        const float *restrict w = W + r * step * D;
        for (i64 d0 = 0; d0 < D; d0 += 1 << 20) { /* an int32 counter vectorises best, and must not overflow */
            int32_t in_row = 0;
            for (i64 d = d0; d < least(d0 + (1 << 20), D); d++) in_row += w[d] * h[d] > t;
            count += in_row;
        }
    }
    return count;
}

/* The features d, of at most TILE, at which floor < w[d] * h[d] <= roof. */
VECTORIZED static i64 within(const float *restrict h, const float *restrict w, float floor_, float roof, i64 n,
                             int32_t *restrict at) {
    uint8_t flags[TILE + 8];
    for (i64 d = 0; d < n; d++) flags[d] = (w[d] * h[d] > floor_) & (w[d] * h[d] <= roof);
    return positions(flags, n, at);
}

static void sort_descending(float *x, i64 n) { /* by insertion: n is at most SMALL */
    for (i64 i = 1; i < n; i++) {
        float moved = x[i];
        i64 j = i;
        for (; j && x[j - 1] < moved; j--) x[j] = x[j - 1];
        x[j] = moved;
    }
}

static float between(float low, float high, double fraction) { return (float)(low + fraction * ((double)high - low)); }

/* The rank-th largest contribution of one sample (from 0), and from there by `fraction` towards the next larger
 * one. Brackets it by bisection, counting; sorts what is left in the bracket. `first`: where to look first. */
static float select_rank(const float *h, const float *W, i64 D, i64 K, i64 rank, double fraction, float first) {
    const i64 bottom = key_of(-INFINITY), ceiling = key_of(INFINITY);
    i64 low = bottom, high = ceiling, t = key_of(first), stride = 1 << 20;
    i64 above_low = D * K, above_high = 0; /* always: above_low > rank, and above_high < rank or rank == 0 */
    while (above_low - above_high > SMALL && low < high - 1) {
        if (t <= low || t >= high) t = (low + high) >> 1;
        i64 above = count_above(h, W, D, K, 1, of_key(t));
        if (above == rank && rank) { /* t parts the two neighbours that are wanted */
            float lower = -INFINITY, upper = INFINITY, at = of_key(t);
            for (i64 k = 0; k < K; k++)
                for (i64 d = 0; d < D; d++) {
                    float c = W[k * D + d] * h[d];
                    if (c > at) upper = c < upper ? c : upper;
                    else lower = c > lower ? c : lower;
                }
            return between(lower, upper, fraction);
        }
        if (above > rank) low = t, above_low = above;
        else high = t, above_high = above;
        if (low == bottom) t -= stride;
        else if (high == ceiling) t += stride;
        else t = (low + high) >> 1;
        if (stride < 1 << 25) stride *= 2;
    }
    if (above_low - above_high > SMALL) /* more equal contributions than could be told apart */
        return high == bottom + 1 ? -INFINITY : of_key(high);
    float left[SMALL];
    i64 count = 0;
    for (i64 k = 0; k < K; k++)
        for (i64 d0 = 0; d0 < D; d0 += TILE) {
            const float *w = W + k * D + d0;
            int32_t at[TILE];
            const i64 inside = within(h + d0, w, of_key(low), of_key(high), least(TILE, D - d0), at);
            for (i64 i = 0; i < inside; i++) left[count++] = w[at[i]] * h[d0 + at[i]];
        }
    sort_descending(left, count);
    const i64 r = rank - above_high;
    if (r >= count) return -INFINITY; /* products that overflowed lie below all that can be collected */
    return r ? between(left[r], left[r - 1], fraction) : left[0];
}

/* A value t > 0 that at least `fewest` and if possible at most `most` contributions in `rows` rows exceed, or 0.
 * Near the top their number falls about like a power of t; `*power`, and t, come from the sample before. */
static float positive_guess(const float *h, const float *W, i64 D, i64 rows, i64 step, i64 fewest, i64 most, float t,
                            float *power) {
    const float target = 0.5f * (float)(fewest + most);
    float low = 0, high = INFINITY, last_t = 0, last_above = 0;
    if (!(t > 0)) t = 1e-2f;
    for (int i = 0; i < 40; i++) {
        const i64 count = count_above(h, W, D, rows, step, t);
        const float above = (float)count;
        if (count >= fewest && count <= most) return t;
        if (count > most) low = t;
        else high = t;
        if (last_above > 0 && above > 0 && above != last_above)
            *power = fminf(fmaxf(logf(last_above / above) / logf(t / last_t), 1), 32);
        last_t = t, last_above = above;
        t *= above > 0 ? powf(above / target, 1 / *power) : 0.25f;
        if (!(t > low && t < high)) t = high == INFINITY ? 4 * low : low > 0 ? sqrtf(low * high) : 0.25f * high;
    }
    return low;
}

/* Bit j: whether x * lane[j] > floor[j]. Lane by lane of four vectors its bit is set, then the bits are gathered. */
VECTORIZED static uint64_t lanes_above(float x, const float *restrict lane, const float *restrict floor_) {
    const vec *p = (const vec *)lane, *f = (const vec *)floor_;
    const ivec bit = {1, 2, 4, 8, 16, 32, 64, 128};
    ivec low = (x * p[0] > f[0]) & bit, high = (x * p[4] > f[4]) & bit;
    for (int v = 1; v < 4; v++) {
        low |= (x * p[v] > f[v]) & (bit << 8 * v);
        high |= (x * p[v + 4] > f[v + 4]) & (bit << 8 * v);
    }
    uint32_t l = 0, h = 0;
    for (int i = 0; i < 8; i++) l |= (uint32_t)low[i], h |= (uint32_t)high[i];
    return (uint64_t)h << 32 | l;
}

/* Collects, for LANES samples at once, all contributions above each sample's floor (> 0), in every step-th row. */
static void collect(const float *W, i64 D, i64 rows, i64 step, const float *lanes, const float *high, const float *low,
                    const float *floor_, float *kept, i64 capacity, i64 *count) {
    int32_t at[TILE];
    for (i64 r = 0; r < rows; r++)
        for (i64 d0 = 0; d0 < D; d0 += TILE) {
            const float *w = W + r * step * D + d0;
            /* high and low hold extremes of h / floor, each rounded twice: hence a little below 1. */
            const i64 features = exceeding(w, high + d0, low + d0, 0.999999f, least(TILE, D - d0), at);
            for (i64 i = 0; i < features; i++) {
                const float x = w[at[i]], *lane = lanes + (d0 + at[i]) * LANES;
                for (uint64_t above = lanes_above(x, lane, floor_); above; above &= above - 1) {
                    const int j = __builtin_ctzll(above);
                    if (count[j] < capacity) kept[j * capacity + count[j]] = x * lane[j];
                    count[j]++;
                }
            }
        }
}

/* The same, again with another floor for samples of which fewer than `fewest` or more than `capacity` were collected:
 * one that about `aim` exceed. Near the top their number falls like a power of the floor, and the median of what was
 * collected tells which. `ones`: as many as the capacity. */
static void collect_enough(const float *W, i64 D, i64 rows, i64 step, const float *lanes, float *extreme,
                           float *floor_, float *kept, i64 capacity, i64 *count, i64 fewest, float aim,
                           const float *ones) {
    float sought[LANES], scale[LANES];
    for (int j = 0; j < LANES; j++) sought[j] = floor_[j], count[j] = 0;
    for (int attempt = 0, missed = 1; missed && attempt < 3; attempt++) {
        for (int j = 0; j < LANES; j++) scale[j] = 1 / sought[j];
        extremes(lanes, D, scale, extreme, extreme + D);
        collect(W, D, rows, step, lanes, extreme, extreme + D, sought, kept, capacity, count);
        missed = 0;
        for (int j = 0; j < LANES; j++) {
            const i64 held = least(count[j], capacity);
            const int enough = count[j] >= fewest && count[j] <= capacity;
            if (sought[j] == INFINITY || attempt == 2) continue;
            sought[j] = INFINITY;
            if (enough || held < 8) continue;
            const float middle = select_rank(ones, kept + j * capacity, held, 1, held / 2, 0, floor_[j]);
            const float t = floor_[j] * powf(floor_[j] / middle, log2f(aim / (float)count[j]));
            if (!(t > 0 && t <= FLT_MAX)) continue;
            floor_[j] = sought[j] = t, count[j] = 0, missed = 1;
        }
    }
}

/* The rank + 1 largest of h[d] * W[row][d], of which `last` is the smallest, in any order. */
static void gather_top(const float *h, const float *W, i64 D, i64 rows, float last, i64 rank, float *top) {
    i64 count = 0;
    for (i64 r = 0; r < rows; r++)
        for (i64 d0 = 0; d0 < D; d0 += TILE) {
            int32_t at[TILE];
            const float *w = W + r * D + d0;
            const i64 above = within(h + d0, w, last, INFINITY, least(TILE, D - d0), at);
            for (i64 i = 0; i < above && count <= rank; i++) top[count++] = w[at[i]] * h[d0 + at[i]];
        }
    while (count <= rank) top[count++] = last; /* others tie with it */
}

/* The contribution of each sample b that `rank` others precede from the top: out[b] goes from there by `fraction`
 * towards the next larger one. With `top`: instead the rank + 1 largest, (B, rank + 1), in any order. NaN unless a
 * sample's features and all weights are finite.
 *
 * The rank is low, as a rule, so the search starts at the top. Some rows give a floor that a few more than the wanted number exceed; what exceeds
 * it is collected from all rows, and the rank selected among that. With many classes even some rows are many: then the
 * floor that is used on them comes from fewer. Where that fails (few contributions, a quantile at or below zero, many
 * ties) it is selected among all of them, more slowly. */
static int largest(const float *h, const float *W, i64 rank, double fraction, float *out, float *top, i64 B, i64 D,
                   i64 K, int threads) {
    const i64 n = D * K;
    const int sparse = n > 16384 && rank < n / 16;
    const i64 rows = least(K, rank ? ceil_div(12 * K, rank) : K); /* that tell of the rank */
    const double expected = (double)rank * rows / K, deviation = sqrt(expected);
    const i64 fewest = (i64)(expected + 2 * deviation + 1), most = (i64)(expected + 3.5 * deviation + 3);
    const double wanted = 0.5 * (double)(fewest + most) * K / rows;
    const i64 glance = rows * D > 4 * GLANCE ? ceil_div(GLANCE, D) : rows; /* rows to look at first */
    i64 capacity = sparse ? 2 * (i64)((double)most * K / rows) : 0;
    if (sparse && glance < rows && capacity < 32 * rows / glance) capacity = 32 * rows / glance;

    int weights_finite = 1;
#pragma omp parallel for num_threads(threads) reduction(&& : weights_finite)
    for (i64 k = 0; k < K; k++) weights_finite = weights_finite && all_finite(W + k * D, D);

    const i64 share = least(LANES, ceil_div(B, threads)); /* samples at a time: every thread gets some */
    const i64 groups = ceil_div(B, share);
    const i64 floats = D * (LANES + 2) + LANES * (capacity + 1);
    const i64 per_thread = ceil_div(sizeof(float) * floats + sizeof(i64) * LANES, 64) * 64;
    char *scratch = scratch_of(per_thread * threads + sizeof(float) * capacity);
    if (!scratch) return -1;
    float *ones = (float *)(scratch + per_thread * threads);
    for (i64 i = 0; i < capacity; i++) ones[i] = 1;

#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; thread++) {
        i64 *count = (i64 *)(scratch + per_thread * thread);
        float *lanes = (float *)(count + LANES), *extreme = lanes + D * LANES, *floor_ = extreme + 2 * D;
        float *kept = floor_ + LANES;
        float guess = 0, power = 8, previous = 0;
        for (i64 g = thread; g < groups; g += threads) {
            const i64 first = g * share, last = least(first + share, B);
            if (sparse) {
                const i64 least_of_glance = glance < rows ? 8 : fewest, most_of_glance = glance < rows ? 16 : most;
                for (i64 j = 0; j < LANES; j++) {
                    const int real = first + j < last;
                    if (real)
                        guess = positive_guess(h + (first + j) * D, W, D, glance, K / glance, least_of_glance,
                                               most_of_glance, guess, &power);
                    floor_[j] = real && guess > 0 ? guess : INFINITY;
                }
                pack(h, B, D, first, lanes);
                if (glance < rows) {
                    collect_enough(W, D, rows, K / rows, lanes, extreme, floor_, kept, capacity, count, most,
                                   4 * (float)most, ones);
                    for (i64 j = 0; j < LANES; j++) {
                        if (count[j] >= most && count[j] <= capacity)
                            floor_[j] = select_rank(ones, kept + j * capacity, count[j], 1, (fewest + most) / 2, 0,
                                                    floor_[j]);
                        else floor_[j] = INFINITY;
                    }
                }
                collect_enough(W, D, K, 1, lanes, extreme, floor_, kept, capacity, count, rank + 1, (float)wanted,
                               ones);
            }
            for (i64 b = first; b < last; b++) {
                const float *sample = h + b * D;
                const i64 collected = sparse ? count[b - first] : 0;
                const int few = collected > rank && collected <= capacity;
                const float *terms = few ? kept + (b - first) * capacity : W, *factors = few ? ones : sample;
                const i64 width = few ? collected : D, height = few ? 1 : K;
                if (!weights_finite || !all_finite(sample, D)) {
                    for (i64 i = 0; i <= (top ? rank : 0); i++) (top ? top + b * (rank + 1) : out + b)[i] = NAN;
                    continue;
                }
                previous = select_rank(factors, terms, width, height, rank, fraction, previous);
                if (top) gather_top(factors, terms, width, height, previous, rank, top + b * (rank + 1));
                else out[b] = previous;
            }
        }
    }
    free(scratch);
    return 0;
}

/* Of n = K*D contributions the one of ascending position level*(n-1), linearly interpolated. */
int spcp_quantile(const float *h, const float *W, double level, float *out, i64 B, i64 D, i64 K, int threads) {
    const i64 n = D * K;
    const double position = level * (double)(n - 1);
    const i64 lower = least((i64)position, n > 1 ? n - 2 : 0);
    return largest(h, W, n - 1 - lower, position - (double)lower, out, NULL, B, D, K, threads);
}

/* The `count` largest contributions of each sample, (B, count), in any order. */
int spcp_top(const float *h, const float *W, i64 count, float *top, i64 B, i64 D, i64 K, int threads) {
    return largest(h, W, count - 1, 0, NULL, top, B, D, K, threads);
}
