/* Takes a tick after the other while all is well, for ticker.py: the loop of energymon/sampling/monitor.py at a
 * third of its cost. Whatever is out of the ordinary is left to that one.
 *
 * A slot of the ring holds a tick (int64 ns, UTC), when its first operation started (int64 ns, monotonic), and for
 * each operation when it was done (int64 ns, monotonic), its status (int32: bytes read, -errno, or what the function
 * returned), and its data, padded to 8 bytes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum kind { READ, PREAD, CALL, CALL_COUNTED };
enum reason { STOPPED, FULL, LEFT, LATE, STEPPED, FAILED, SLOW, ABANDONED, ASKED };

struct operation {
    int32_t kind, fd, count, size;
    void *function, *handle, *buffer;
};

/* Shared with Python: every field has one writer. */
struct control {
    int64_t produced;    /* ticks in the ring since it was made */
    int64_t started_ns;    /* when the operation in progress started, 0 between ticks */
    int64_t next_ns;     /* the tick that is awaited */
    int32_t in_progress; /* its place */
    int32_t unused;
    int64_t consumed;    /* Python's from here on */
    int64_t until_ns;    /* the tick after which to stop */
    int32_t leave;       /* leave the next tick to Python */
    int32_t abandon;     /* another thread keeps the time by now */
};

struct task {
    struct control *control;
    const struct operation *operations;
    uint8_t *ring;
    int64_t capacity, slot_bytes, interval_ns, offset_ns, wall_ns, unnoticed_ns, slow_ns, dither_ns;
    int32_t count, readings, wake_fd, unused;
};

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int32_t perform(const struct operation *op, uint8_t *data) {
    ssize_t got;
    int code;
    switch (op->kind) {
    case READ:
        got = read(op->fd, data, op->size);
        return got < 0 ? -errno : (int32_t)got;
    case PREAD:
        got = pread(op->fd, data, op->size, 0);
        return got < 0 ? -errno : (int32_t)got;
    case CALL:
        code = ((int (*)(void *, void *))op->function)(op->handle, op->buffer);
        break;
    default:
        code = ((int (*)(void *, int, void *))op->function)(op->handle, op->count, op->buffer);
    }
    memcpy(data, op->buffer, op->size);
    return code;
}

/* How long after a tick it is taken, as clock.py has it. */
static int64_t dither(int64_t tick_ns, int64_t within_ns) {
    uint64_t mixed = (uint64_t)tick_ns + UINT64_C(0x9E3779B97F4A7C15);
    if (within_ns == 0)
        return 0;
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return (int64_t)((mixed ^ mixed >> 31) % (uint64_t)within_ns);
}

/* Waits until `due_ns` of the monotonic clock, or returns 1 as soon as `fd` can be read. */
static int asked(int fd, int64_t due_ns) {
    for (;;) {
        int64_t left_ns = due_ns - now_ns(CLOCK_MONOTONIC);
        if (left_ns < 0)
            left_ns = 0;
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        struct pollfd wake = {fd, POLLIN, 0};
        int ready = ppoll(&wake, 1, &left, NULL);
        if (ready > 0)
            return 1;
        if (ready == 0)
            return 0;
    }
}

int run(const struct task *task) {
    struct control *control = task->control;
    for (;;) {
        int64_t tick_ns = __atomic_load_n(&control->next_ns, __ATOMIC_RELAXED);
        int64_t due_ns = tick_ns - task->offset_ns + dither(tick_ns, task->dither_ns);
        struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
        if (__atomic_load_n(&control->leave, __ATOMIC_ACQUIRE))
            return LEFT;
        if (control->produced - __atomic_load_n(&control->consumed, __ATOMIC_ACQUIRE) >= task->capacity)
            return FULL;
        if (task->wake_fd < 0)
            while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
                ;
        else if (asked(task->wake_fd, due_ns))
            return ASKED;
        int64_t before_ns = now_ns(CLOCK_MONOTONIC);
        int64_t step_ns = now_ns(CLOCK_REALTIME) - before_ns - task->offset_ns - task->wall_ns;
        if (step_ns <= -task->unnoticed_ns || step_ns >= task->unnoticed_ns)
            return STEPPED;
        if (before_ns - due_ns >= task->interval_ns)
            return LATE;
        uint8_t *slot = task->ring + control->produced % task->capacity * task->slot_bytes;
        enum reason reason = STOPPED;
        for (int reading = 0; reading < task->readings; reading++) {
            int64_t *at = (int64_t *)slot;
            reason = STOPPED;
            *at++ = control->next_ns;
            *at++ = before_ns;
            for (int i = 0; i < task->count; i++) {
                const struct operation *op = &task->operations[i];
                __atomic_store_n(&control->in_progress, i, __ATOMIC_RELAXED);
                __atomic_store_n(&control->started_ns, before_ns, __ATOMIC_RELEASE);
                int32_t status = perform(op, (uint8_t *)(at + 2));
                int64_t after_ns = now_ns(CLOCK_MONOTONIC);
                at[0] = after_ns;
                memcpy(&at[1], &status, sizeof status);
                if (op->kind >= CALL ? status != 0 : status <= 0)
                    reason = FAILED;
                else if (after_ns - before_ns > task->slow_ns && reason == STOPPED)
                    reason = SLOW;
                before_ns = after_ns;
                if (__atomic_load_n(&control->abandon, __ATOMIC_ACQUIRE))
                    return ABANDONED;
                at += 2 + (op->size + 7) / 8;
            }
        }
        __atomic_store_n(&control->started_ns, 0, __ATOMIC_RELEASE);
        if (__atomic_load_n(&control->abandon, __ATOMIC_ACQUIRE))
            return ABANDONED;
        int64_t taken_ns = control->next_ns;
        __atomic_store_n(&control->next_ns, taken_ns + task->interval_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&control->produced, control->produced + 1, __ATOMIC_RELEASE);
        if (reason != STOPPED || taken_ns >= __atomic_load_n(&control->until_ns, __ATOMIC_ACQUIRE))
            return reason;
    }
}

int64_t ring_end(const struct control *control) {
    return __atomic_load_n(&control->produced, __ATOMIC_ACQUIRE);
}

void ring_free(struct control *control, int64_t end) {
    __atomic_store_n(&control->consumed, end, __ATOMIC_RELEASE);
}
