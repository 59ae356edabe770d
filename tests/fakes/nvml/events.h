/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * Event sets. The file `events` has a line for each event since the machine started: the card, the type and
 * its data, and of a MIG device's the GPU instance and the compute instance.
 */
#pragma once
#include "state.h"
#include <sys/stat.h>

enum { LOOK_US = 150000, EVENT_ROOM = 4096 };

typedef struct set { long at; u64 types[CARDS]; } *set;
struct event { dev device; u64 type, data; unsigned gpu_instance, compute_instance; };

static const char *events_path(char *to, int room)
{
    const char *dir = getenv("FAKE_GPU_DIR");
    snprintf(to, room, "%s/events", dir ? dir : "/var/lib/fake-gpu");
    return to;
}

static long events_size(void)
{
    char path[512];
    struct stat found;
    return stat(events_path(path, sizeof path), &found) ? 0 : found.st_size;
}

rc nvmlDeviceGetSupportedEventTypes(dev d, u64 *to) { return number(d, "event-types", "0xfe9f", to); }

rc nvmlEventSetCreate(set *to)
{
    hang();
    if (inits < 1)
        return UNINITIALIZED;
    *to = calloc(1, sizeof **to);
    if (*to)
        (*to)->at = events_size();
    return *to ? OK : 20;
}

/* MIG devices have none of their own: their GPU's events name them. */
rc nvmlDeviceRegisterEvents(dev d, u64 types, set s)
{
    u64 supported;
    rc status = nvmlDeviceGetSupportedEventTypes(d, &supported);
    if (status)
        return status;
    if (d->slice >= 0)
        return INVALID;
    if (types & ~supported)
        return NOT_SUPPORTED;
    s->types[d->card] |= types;
    return OK;
}

/* The next event that the set wants; whether there is one. */
static int next_event(set s, struct event *to)
{
    char path[512], line[TEXT];
    int found = 0, card;
    long size = events_size();
    if (size < s->at) /* The machine has begun anew. */
        s->at = 0;
    if (size == s->at)
        return 0;
    FILE *file = fopen(events_path(path, sizeof path), "re");
    if (!file)
        return 0;
    fseek(file, s->at, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        s->at += strlen(line);
        to->gpu_instance = to->compute_instance = ~0u;
        if (sscanf(line, "%d %lli %lli %u %u", &card, (long long *)&to->type, (long long *)&to->data,
                   &to->gpu_instance, &to->compute_instance) < 3 || card < 0 || card >= CARDS)
            continue;
        to->device = &whole[card];
        found = (s->types[card] & to->type) != 0;
    }
    fclose(file);
    return found;
}

static int lost_one(set s)
{
    for (int i = 0; i < CARDS; i++)
        if (s->types[i] && !seen(i))
            return 1;
    return 0;
}

rc nvmlEventSetWait_v2(set s, struct event *to, unsigned milliseconds)
{
    double end = uptime() + milliseconds / 1000.0;
    if (inits < 1)
        return UNINITIALIZED;
    if (!s)
        return INVALID;
    for (;;) {
        hang();
        if (next_event(s, to))
            return OK;
        if (uptime() >= end)
            return lost_one(s) ? LOST : TIMEOUT;
        double left = (end - uptime()) * 1e6;
        usleep(left < LOOK_US ? (left > 1000 ? left : 1000) : LOOK_US);
    }
}

rc nvmlEventSetWait(set s, struct event *to, unsigned milliseconds)
{
    return nvmlEventSetWait_v2(s, to, milliseconds);
}

rc nvmlEventSetFree(set s)
{
    if (inits < 1)
        return UNINITIALIZED;
    free(s);
    return OK;
}
