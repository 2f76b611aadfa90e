/* SPDX-License-Identifier: Apache-2.0
 *
 * What `msprobe.capture._native` offers to other extensions, through the capsule
 * "msprobe.capture._native.API".
 */
#ifndef MSPROBE_NATIVE_API_H
#define MSPROBE_NATIVE_API_H

#include <Python.h>
#include <stdint.h>

#define MSPROBE_NATIVE_API "msprobe.capture._native.API"
#define MSPROBE_NATIVE_API_VERSION 7
#define MSPROBE_MAX_DIMS 64

struct msprobe_kind {
    const char *name; /* "float32", as the frameworks call it */
    size_t itemsize;
};

/* Numbers of a buffer as doubles; NaN where there are none (the mean of booleans). */
struct msprobe_measures {
    double max, min, mean, norm;
    double below; /* how many elements have a magnitude below the threshold */
    double nan, inf, count;
};

/* What tells the content of a tensor, as `statistics` has it, and the CRC-32 of its bytes. */
struct msprobe_print {
    double norm, projections[2];
    uint32_t checksum;
    uint8_t has_norm, has_projections, has_checksum; /* no checksum on some processors */
};

#define MSPROBE_SAMPLES 8 /* as in dump/facts.py */
#define MSPROBE_SAMPLE_BYTES 8

/* `count` > 0 elements one behind the other, all of them readable, and what is found of them. */
struct msprobe_block {
    const char *start;
    Py_ssize_t count, sample_step; /* in elements */
    int kind;
    int is_known; /* whether `print` is there already */
    struct msprobe_print print;
    char samples[MSPROBE_SAMPLES][MSPROBE_SAMPLE_BYTES]; /* the first elements at the step's multiples */
};

/* Bins of magnitudes: zeros, below 2^-40, 32 bins of two powers of two each, 2^24 and above. */
#define MSPROBE_BINS 35

struct msprobe_native_api {
    int version;
    int kind_count;
    struct msprobe_kind (*kind)(int index);
    /* (max, min, mean, norm, None | (nan, +inf, -inf, finite max, finite min),
     * None | (projection, projection)) of a strided buffer, or NULL with a Python exception: a negative stride, too many dimensions, or fewer than the
     * `size_bytes` readable bytes that its last element needs. */
    PyObject *(*statistics)(int kind, const char *start, int ndim, const int64_t *shape,
                            const int64_t *strides, Py_ssize_t size_bytes);
    /* The same as numbers, without projections. `threshold`: negative to count nothing; `bins`:
     * MSPROBE_BINS counts to fill, or NULL. 0, or -1 with an exception as above. */
    int (*measure)(int kind, const char *start, int ndim, const int64_t *shape,
                   const int64_t *strides, Py_ssize_t size_bytes, double threshold,
                   double *bins, struct msprobe_measures *out);
    /* The greatest magnitude of the elements, of complex ones of their parts: NaN or infinite where
     * there is a NaN or an infinity, of which no more is said; 0 of integers, which are not read.
     * 0, or -1 with an exception as above. */
    int (*largest)(int kind, const char *start, int ndim, const int64_t *shape,
                   const int64_t *strides, Py_ssize_t size_bytes, double *out);
    /* By several threads where there is much to read, and then without the GIL. */
    void (*read_blocks)(struct msprobe_block *blocks, size_t count);
};

#endif
