/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * The state of the fake cards: read from small files at each call. nvml.c says which.
 */
#pragma once
#define _GNU_SOURCE
#include <ctype.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
enum { RM_MISMATCH = 18, VERSION_MISMATCH = 25 };
enum { CARDS = 32, SLICES = 8, TEXT = 256 };

typedef int rc;
typedef unsigned long long u64;
typedef struct dev { int card, slice; } *dev; /* slice -1: the whole card */

static struct dev whole[CARDS], slices[CARDS][SLICES];
static int inits;

/* Reads a state file without its line end; answers whether it is there. */
static int slurp(char *to, int room, const char *format, ...)
{
    const char *dir = getenv("FAKE_GPU_DIR");
    char path[512];
    va_list args;
    int at = snprintf(path, sizeof path, "%s/", dir ? dir : "/var/lib/fake-gpu");

    va_start(args, format);
    vsnprintf(path + at, sizeof path - at, format, args);
    va_end(args);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t got = fread(to, 1, room - 1, file);
    fclose(file);
    while (got && isspace((unsigned char)to[got - 1]))
        got--;
    to[got] = 0;
    return 1;
}

static void value(int card, const char *name, const char *otherwise, char *to)
{
    if (!slurp(to, TEXT, "gpus/%d/%s", card, name))
        strcpy(to, otherwise);
}

static int is(int card, const char *name, const char *otherwise, const char *wanted)
{
    char text[TEXT];
    value(card, name, otherwise, text);
    return !strcmp(text, wanted);
}

static int driven(int card)
{
    char text[TEXT];
    return slurp(text, TEXT, "gpus/%d/uuid", card) && is(card, "driver", "nvidia", "nvidia");
}

static double uptime(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* The file `hang` makes each call wait: until it is gone, or the uptime in it has come. */
static void hang(void)
{
    char text[TEXT];
    while (slurp(text, TEXT, "hang") && (!*text || uptime() < atof(text)))
        usleep(50000);
}

static int seen(int card)
{
    return driven(card) && !is(card, "fault", "", "fallen-off-bus") && !is(card, "fault", "", "taken-away");
}

static unsigned seen_before(int card)
{
    unsigned count = 0;
    for (int i = 0; i < card; i++)
        count += seen(i);
    return count;
}

static int has_slice(int card, int slice)
{
    char text[TEXT];
    return slurp(text, TEXT, "gpus/%d/mig/%d", card, slice);
}

static rc check(dev d)
{
    hang();
    if (inits < 1)
        return UNINITIALIZED;
    if (!d)
        return INVALID;
    if (!seen(d->card) || is(d->card, "fault", "", "nvml-only"))
        return LOST;
    return d->slice < 0 || has_slice(d->card, d->slice) ? OK : INVALID;
}

static rc number(dev d, const char *name, const char *otherwise, u64 *to)
{
    char text[TEXT];
    rc status = check(d);
    if (status)
        return status;
    value(d->card, name, otherwise, text);
    if (!strcmp(text, "N/A"))
        return NOT_SUPPORTED;
    if (!strncmp(text, "rc=", 3))
        return atoi(text + 3);
    *to = strtoull(text, NULL, 0);
    return OK;
}

static rc small(dev d, const char *name, const char *otherwise, unsigned *to)
{
    u64 wide;
    rc status = number(d, name, otherwise, &wide);
    if (!status)
        *to = (unsigned)wide;
    return status;
}

static rc copy(char *to, unsigned room, const char *text)
{
    if (strlen(text) >= room)
        return SMALL;
    strcpy(to, text);
    return OK;
}
