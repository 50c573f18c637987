/* A load whose energy is known at every instant: a square wave between two powers. */
#include <stdint.h>
#include <time.h>

typedef struct {
    double low_w, high_w;
    int64_t period_ns; /* of the wave; high in its first half */
    int64_t shift_ns;
} load;

/* Joules since the machine was booted, at `t_ns` of CLOCK_BOOTTIME. */
static double joules_at(const load *l, int64_t t_ns) {
    int64_t t = t_ns + l->shift_ns, whole = t / l->period_ns, rest = t % l->period_ns, half = l->period_ns / 2;
    int64_t high_ns = whole * half + (rest < half ? rest : half);
    return (l->low_w * (double)(t - high_ns) + l->high_w * (double)high_ns) * 1e-9;
}

static double watts_at(const load *l, int64_t t_ns) {
    return (t_ns + l->shift_ns) % l->period_ns < l->period_ns / 2 ? l->high_w : l->low_w;
}

static int64_t clock_at(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
