/* Bytes to what a network gets, in one pass: choose an image, cut a window out of it as padded, mirror it, and
 * normalise. The same products and differences as `x.float().mul(scale).sub(shift)`, hence -ffp-contract=off.
 * On one thread: a batch takes a fraction of a millisecond, less than threads may wait for each other on a busy machine. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;

static i64 within(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

static void normalise(const uint8_t *restrict in, float scale, float shift, float *restrict out, i64 n) {
    for (i64 i = 0; i < n; i++)
        out[i] = (float)in[i] * scale - shift;
}

/* n bytes, in their order or in the opposite one; eight at a time, since rows are short. */
static inline void move(const uint8_t *restrict in, uint8_t *restrict out, i64 n, int mirrored) {
    i64 i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, in + i, 8);
        eight = mirrored ? __builtin_bswap64(eight) : eight;
        memcpy(mirrored ? out + n - 8 - i : out + i, &eight, 8);
    }
    for (; i < n; i++)
        out[mirrored ? n - 1 - i : i] = in[i];
}

/* Fill what is around the rows [above, below) and columns [left, right) with their reflections at the edges. */
static void reflect(uint8_t *plane, i64 side, i64 above, i64 below, i64 left, i64 right) {
    for (i64 y = above; y < below; y++) {
        uint8_t *row = plane + y * side;
        for (i64 x = 0; x < left; x++)
            row[x] = row[2 * left - x];
        for (i64 x = right; x < side; x++)
            row[x] = row[2 * (right - 1) - x];
    }
    for (i64 y = 0; y < above; y++)
        memcpy(plane + y * side, plane + (2 * above - y) * side, side);
    for (i64 y = below; y < side; y++)
        memcpy(plane + y * side, plane + (2 * (below - 1) - y) * side, side);
}

/* One image (C, H, W) to (C, side, side), with its top left corner at (top, left), which may lie outside of it. */
static void cut(const uint8_t *restrict image, const float *restrict scale, const float *restrict shift,
                float *restrict out, uint8_t *restrict plane, i64 C, i64 H, i64 W, i64 side, i64 top, i64 left,
                int mirrored, int reflects) {
    const i64 first = within(-left, 0, side), last = within(W - left, first, side); /* columns within the image */
    const i64 above = within(-top, 0, side), below = within(H - top, above, side);  /* rows within it */
    const i64 start = mirrored ? side - last : first;
    memset(plane, 0, side * side);
    for (i64 c = 0; c < C; c++, out += side * side) {
        for (i64 y = above; y < below; y++)
            move(image + (c * H + y + top) * W + left + first, plane + y * side + start, last - first, mirrored);
        if (reflects)
            reflect(plane, side, above, below, start, start + last - first);
        normalise(plane, scale[c], shift[c], out, side * side);
    }
}

/* out (B, C, side, side). index: which of the images, or NULL for the first B. windows: 2 * place + mirrored, with
 * (2 padding + 1)^2 places row by row, or NULL for the images as they are, where side = H = W. reflects: pad with
 * reflections, of fewer pixels than half a side, not with zeros.
 * Returns 1 if there is no memory. The name has a version, so that a library of another one is not called. */
int spcp_cut_2(const uint8_t *images, const i64 *index, const i64 *windows, const float *scale, const float *shift,
              float *out, i64 B, i64 C, i64 H, i64 W, i64 side, i64 padding, int reflects) {
    const i64 places = 2 * padding + 1;
    uint8_t *plane = windows ? malloc(side * side) : NULL;
    if (windows && !plane)
        return 1;
    for (i64 b = 0; b < B; b++) {
        const uint8_t *image = images + (index ? index[b] : b) * C * H * W;
        float *target = out + b * C * side * side;
        if (windows) {
            const i64 place = windows[b] / 2;
            cut(image, scale, shift, target, plane, C, H, W, side, place / places - padding, place % places - padding,
                windows[b] % 2, reflects);
        } else {
            for (i64 c = 0; c < C; c++)
                normalise(image + c * H * W, scale[c], shift[c], target + c * H * W, H * W);
        }
    }
    free(plane);
    return 0;
}
