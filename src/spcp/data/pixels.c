/* Bytes to what a network gets, in one pass: choose an image, cut a window out of it as padded with zeros, mirror it,
 * and normalise. The same products and differences as `x.float().mul(scale).sub(shift)`, hence -ffp-contract=off. */

#include <stddef.h>
#include <stdint.h>

typedef int64_t i64;

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define VECTORIZED __attribute__((noinline, target_clones("avx512f", "avx2", "default")))
#else
#define VECTORIZED
#endif

static i64 within(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

/* One image (C, H, W) to (C, side, side), with its top left corner at (top, left), which may lie outside of it. */
VECTORIZED static void cut(const uint8_t *restrict image, const float *restrict scale, const float *restrict shift,
                           float *restrict out, i64 C, i64 H, i64 W, i64 side, i64 top, i64 left, int mirrored) {
    const i64 first = within(-left, 0, side); /* columns first .. last - 1 lie within the image */
    const i64 last = within(W - left, first, side);
    for (i64 c = 0; c < C; c++) {
        const float a = scale[c], b = shift[c], outside = 0.0f * a - b;
        for (i64 y = 0; y < side; y++, out += side) {
            const i64 row = y + top;
            if (row < 0 || row >= H) {
                for (i64 x = 0; x < side; x++)
                    out[x] = outside;
                continue;
            }
            const uint8_t *restrict in = image + (c * H + row) * W + left;
            if (!mirrored) {
                for (i64 x = 0; x < first; x++)
                    out[x] = outside;
                for (i64 x = first; x < last; x++)
                    out[x] = (float)in[x] * a - b;
                for (i64 x = last; x < side; x++)
                    out[x] = outside;
            } else {
                for (i64 x = 0; x < first; x++)
                    out[side - 1 - x] = outside;
                for (i64 x = first; x < last; x++)
                    out[side - 1 - x] = (float)in[x] * a - b;
                for (i64 x = last; x < side; x++)
                    out[side - 1 - x] = outside;
            }
        }
    }
}

/* out (B, C, side, side). index: which of the images, or NULL for the first B. windows: place * 2 + mirrored, with
 * (2 padding + 1)^2 places row by row, or NULL for the middle one, not mirrored. */
void spcp_cut(const uint8_t *images, const i64 *index, const i64 *windows, const float *scale, const float *shift,
              float *out, i64 B, i64 C, i64 H, i64 W, i64 side, i64 padding, int threads) {
    const i64 places = 2 * padding + 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (i64 b = 0; b < B; b++) {
        const i64 i = index ? index[b] : b, window = windows ? windows[b] : 0, place = window / 2;
        const i64 top = windows ? place / places - padding : 0, left = windows ? place % places - padding : 0;
        cut(images + i * C * H * W, scale, shift, out + b * C * side * side, C, H, W, side, top, left, window % 2);
    }
}
