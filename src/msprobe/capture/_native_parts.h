/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _native.c: several threads read large buffers, and many buffers at once.
 *
 * Threads live as long as one reading: nothing is left behind that a fork would lose. No number
 * depends on how many there are: a buffer's size alone says in which parts it is read, and the parts
 * are added up in their order. A thread begins with the floating-point environment of the one that
 * makes it, or with the default one.
 */
#include <pthread.h>
#include <signal.h>

#define MAX_THREADS 16
/* What is worth a thread: making one takes about as long as reading a third of it. */
#define THREAD_BYTES (1 << 20)

static int thread_limit = 1; /* see `use_threads` */

typedef void (*job_fn)(void *state, size_t job);

struct jobs {
    job_fn of;
    void *state;
    size_t count, next;
};

static void *work_off(void *work)
{
    struct jobs *jobs = work;
    size_t job;
    while ((job = __atomic_fetch_add(&jobs->next, 1, __ATOMIC_RELAXED)) < jobs->count)
        jobs->of(jobs->state, job);
    return NULL;
}

/* Do jobs that together read some bytes, in any order. The GIL is not held where there are many. */
static void do_jobs(size_t count, size_t size_bytes, job_fn of, void *state)
{
    struct jobs jobs = {of, state, count, 0};
    size_t wanted = size_bytes / THREAD_BYTES, helpers = 0;
    if (wanted > (size_t)thread_limit) wanted = (size_t)thread_limit;
    if (wanted > count) wanted = count;
    pthread_t threads[MAX_THREADS];
    if (wanted > 1) { /* what is sent to the process is for the threads that it had */
        static const int SENT[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGPROF};
        sigset_t sent, before;
        sigemptyset(&sent);
        for (size_t i = 0; i < sizeof SENT / sizeof *SENT; i++) sigaddset(&sent, SENT[i]);
        pthread_sigmask(SIG_BLOCK, &sent, &before);
        while (helpers + 1 < wanted && pthread_create(threads + helpers, NULL, work_off, &jobs) == 0)
            helpers++;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    work_off(&jobs);
    while (helpers) pthread_join(threads[--helpers], NULL);
}

/* ---- one buffer in parts --------------------------------------------------------------------- */

#define PART_BYTES (64 * (size_t)BLOCK_BYTES)
#define FEWEST_PARTS 4
#define MOST_PARTS 64
#define LEAST_BYTES_IN_PARTS (FEWEST_PARTS * PART_BYTES)

static int is_read_in_parts(const struct layout *layout)
{
    return layout->ndim == 1 && layout->stride[0] == 1 && !layout->magnitudes &&
           (size_t)layout->size[0] * layout->itemsize >= LEAST_BYTES_IN_PARTS;
}

struct part {
    struct reduction reduction;
    struct crc crc;
};

struct parts {
    const struct layout *layout;
    const struct reduction *whole;
    size_t elements; /* of each but the last: whole blocks */
    struct part of[MOST_PARTS];
};

static void reduce_part(void *state, size_t index)
{
    struct parts *parts = state;
    struct part *part = parts->of + index;
    size_t first = index * parts->elements, left = (size_t)parts->layout->size[0] - first;
    struct layout layout;
    dense_layout(&layout, (int)(parts->whole->kind - KINDS),
                 parts->layout->start + first * parts->layout->itemsize,
                 (Py_ssize_t)(left < parts->elements ? left : parts->elements));
    part->reduction = *parts->whole;
    part->reduction.total.projections.index = first;
    if (parts->layout->crc) {
        part->crc = index ? CRC_OF_PART : CRC_START;
        layout.crc = &part->crc;
        layout.crc->is_complete = parts->whole->total.crc != NULL;
        if (layout.crc->is_complete) part->reduction.total.crc = layout.crc;
    }
    walk(&layout, BLOCK_BYTES, reduce_block, &part->reduction);
}

static void exact_join(struct exact *total, const struct exact *part)
{
    exact_add(total, part->value);
    total->error += part->error;
}

static void join_total(struct total *total, const struct total *part)
{
    if (part->float_max > total->float_max) total->float_max = part->float_max;
    if (part->float_min < total->float_min) total->float_min = part->float_min;
    exact_join(&total->sum, &part->sum);
    exact_join(&total->sumsq, &part->sumsq);
    for (int k = 0; k < PROJECTIONS; k++)
        exact_join(&total->projections.of[k], &part->projections.of[k]);
}

/* Reduce a large dense buffer of narrow floats as `walk` does. */
static void reduce_in_parts(const struct layout *layout, struct reduction *reduction)
{
    struct parts parts = {.layout = layout, .whole = reduction};
    size_t left = (size_t)layout->size[0], size_bytes = left * layout->itemsize;
    size_t bytes = (size_bytes / (MOST_PARTS * BLOCK_BYTES) + 1) * BLOCK_BYTES;
    if (bytes < PART_BYTES) bytes = PART_BYTES;
    size_t count = (size_bytes + bytes - 1) / bytes;
    parts.elements = bytes / layout->itemsize;
    do_jobs(count, size_bytes, reduce_part, &parts);
    for (size_t i = 0; i < count; i++, left -= parts.elements) {
        join_total(&reduction->total, &parts.of[i].reduction.total);
        size_t elements = left < parts.elements ? left : parts.elements;
        if (layout->crc && i) crc_join(&parts.of[0].crc, &parts.of[i].crc, elements * layout->itemsize);
    }
    if (layout->crc) {
        *layout->crc = parts.of[0].crc;
        layout->crc->is_complete = 1;
    }
}
