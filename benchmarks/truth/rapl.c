/* Drives energy_uj files in real time: rapl UPDATE_US LOW_W HIGH_W WAVE_US RANGE_UJ DELAY_US STALL_US EVERY_US FILE...
 *
 * Each file is a counter of a load of its own, shifted by a third of a wave from the one before. A value is what was
 * used by the instant DELAY_US before it is written. Once the line "stall" comes from stdin, an update takes STALL_US
 * once in EVERY_US, and each time where EVERY_US is 0. Prints a line when it counts, and counts until another line;
 * then prints the longest time between two updates, ns.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "load.h"

int main(int argc, char **argv) {
    int64_t update_ns = atoll(argv[1]) * 1000, wave_ns = atoll(argv[4]) * 1000, range = atoll(argv[5]);
    int64_t delay_ns = atoll(argv[6]) * 1000, stall_ns = atoll(argv[7]) * 1000, every_ns = atoll(argv[8]) * 1000;
    int files = argc - 9, fds[16], stalls = 0;
    load loads[16];
    for (int i = 0; i < files; i++) {
        loads[i] = (load){atof(argv[2]), atof(argv[3]), wave_ns, i * wave_ns / 3};
        fds[i] = open(argv[9 + i], O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        if (fds[i] < 0)
            return 1;
    }
    /* A counter of hardware is never late for lack of a CPU. */
    struct sched_param priority = {.sched_priority = 50};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    int64_t due_ns = clock_at(CLOCK_MONOTONIC), last_ns = 0, longest_ns = 0;
    for (int64_t count = 0;; count++) {
        int64_t now_ns = 0;
        for (int i = 0; i < files; i++) {
            char text[32];
            now_ns = clock_at(CLOCK_BOOTTIME);
            snprintf(text, sizeof text, "%-20lld\n", (long long)((int64_t)(joules_at(&loads[i], now_ns - delay_ns) * 1e6) % range));
            if (pwrite(fds[i], text, strlen(text), 0) < 0)
                return 1;
        }
        if (last_ns && now_ns - last_ns > longest_ns)
            longest_ns = now_ns - last_ns;
        last_ns = now_ns;
        if (count == 0) {
            puts("counting");
            fflush(stdout);
        }
        struct pollfd end = {0, POLLIN, 0};
        if ((stalls || count % 16 == 0) && poll(&end, 1, 0) > 0) {
            char line[16] = "";
            if (read(0, line, sizeof line) <= 0 || strncmp(line, "stall", 5))
                break;
            stalls = 1;
        }
        int64_t step_ns = update_ns;
        if (stalls && (!every_ns || due_ns / every_ns != (due_ns + update_ns) / every_ns))
            step_ns = stall_ns;
        due_ns += step_ns;
        int64_t behind_ns = clock_at(CLOCK_MONOTONIC) - due_ns;
        if (behind_ns > update_ns)
            due_ns += behind_ns;
        /* What is judged is how late it is, not how long an update was to take. */
        last_ns += step_ns - update_ns;
        struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
    printf("%lld\n", (long long)longest_ns);
    return 0;
}
