/* NVML of boards whose energy is known at every instant, for energymon's `--nvml`; has the driver library's SONAME.
 *
 * TRUTH_NVML names a file of numbers that is read at every call, one board a line:
 *
 *   LOW_W HIGH_W WAVE_MS UPDATE_MS COUNTS HANG_MS LATE DELAY_MS LOST SINCE_NS PART_MS HEAT_W HEAT_MS
 *
 * COUNTS is 0 for a board that tells power alone. A call takes HANG_MS, and takes its value before that unless LATE.
 * An update shows what was used DELAY_MS before it. LOST is 1 for a board that has fallen off the bus. The driver began
 * to count at SINCE_NS of CLOCK_BOOTTIME. With PART_MS it takes the power of the last PART_MS before an update for that
 * of all of the time since the one before it. The board draws HEAT_W more in the first half of each HEAT_MS.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "load.h"

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15, MAX_BOARDS = 8 };

typedef struct {
    load wave;
    int64_t update_ns, hang_ns, delay_ns, since_ns, part_ns;
    load heat;
    int counts, late, lost;
} board;

static int boards(board *found) {
    FILE *file = fopen(getenv("TRUTH_NVML"), "r");
    double low, high, wave_ms, update_ms, hang_ms, delay_ms, part_ms, heat, heat_ms;
    long long since_ns;
    int count = 0, counts, late, lost;
    while (file && count < MAX_BOARDS &&
           fscanf(file, "%lf %lf %lf %lf %d %lf %d %lf %d %lld %lf %lf %lf", &low, &high, &wave_ms, &update_ms, &counts,
                  &hang_ms, &late, &delay_ms, &lost, &since_ns, &part_ms, &heat, &heat_ms) == 13)
        found[count++] = (board){{low, high, (int64_t)(wave_ms * 1e6), 0}, (int64_t)(update_ms * 1e6),
                                 (int64_t)(hang_ms * 1e6), (int64_t)(delay_ms * 1e6), since_ns,
                                 (int64_t)(part_ms * 1e6), {0, heat, (int64_t)(heat_ms * 1e6), 0}, counts, late, lost};
    if (file)
        fclose(file);
    return count;
}

/* Take a board's time of reading; hang around it. */
static int look(void *handle, board *found, int64_t *now_ns) {
    board all[MAX_BOARDS];
    int count = boards(all), index = (int)(intptr_t)handle - 1;
    if (index < 0 || index >= count)
        return INVALID;
    *found = all[index];
    if (found->lost)
        return LOST;
    *now_ns = clock_at(CLOCK_BOOTTIME);
    if (found->hang_ns) {
        struct timespec hang = {found->hang_ns / 1000000000, found->hang_ns % 1000000000};
        nanosleep(&hang, NULL);
        if (found->late)
            *now_ns = clock_at(CLOCK_BOOTTIME);
    }
    return OK;
}

/* Joules since the machine was booted. */
static double used_at(const board *b, int64_t t_ns) { return joules_at(&b->wave, t_ns) + joules_at(&b->heat, t_ns); }

/* What the counter shows of the time between two instants. */
static double counted(const board *b, int64_t from_ns, int64_t to_ns) {
    if (!b->part_ns)
        return used_at(b, to_ns) - used_at(b, from_ns);
    double joules = 0;
    for (int64_t t = from_ns - from_ns % b->update_ns + b->update_ns; t <= to_ns; t += b->update_ns)
        joules += (used_at(b, t) - used_at(b, t - b->part_ns)) * (double)b->update_ns / (double)b->part_ns;
    return joules;
}

int nvmlInitWithFlags(unsigned flags) { return (void)flags, OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return (void)code, "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.00"), OK; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    board all[MAX_BOARDS];
    *count = (unsigned)boards(all);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(intptr_t)(index + 1);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2((unsigned)atoi(uuid + strlen("GPU-")), handle);
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    return (void)handle, snprintf(text, size, "H100 of the fixture"), OK;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    return snprintf(text, size, "GPU-%d", (int)(intptr_t)handle - 1), OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) {
    return (void)handle, (void)now, (void)next, NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    board b;
    int64_t now_ns;
    int code = look(handle, &b, &now_ns);
    if (code)
        return code;
    if (!b.counts)
        return NOT_SUPPORTED;
    /* When the updates become rarer, the last of the old ones may be later than one of the new ones. */
    static int64_t shown_ns[MAX_BOARDS];
    int64_t *last_ns = &shown_ns[(intptr_t)handle - 1];
    if (now_ns - now_ns % b.update_ns > *last_ns)
        *last_ns = now_ns - now_ns % b.update_ns;
    double joules = counted(&b, b.since_ns, *last_ns - b.delay_ns);
    *millijoules = joules > 0 ? (unsigned long long)(joules * 1e3) : 0;
    return OK;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    board b;
    int64_t now_ns;
    int code = look(handle, &b, &now_ns);
    if (code)
        return code;
    if (b.counts)
        return NOT_SUPPORTED;
    *milliwatts = (unsigned)((watts_at(&b.wave, now_ns) + watts_at(&b.heat, now_ns)) * 1e3);
    return OK;
}
