/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A libcuda.so.1 that allocates, copies and multiplies nothing, and takes as long as an H100. What it
 * has allocated is a line "<pid> <MiB>" of the first card's `processes`, as NVML lists it; whoever
 * runs the machine sees to what else a load shows (tests/functional/test_prove_gpu.py). With
 * FAKE_GPU_OPENS a context has that node open.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long place;

static double owed;

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int number) { return *device = number, 0; }

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const char *node = getenv("FAKE_GPU_OPENS");
    (void)device;
    *context = &owed;
    return node && open(node, O_RDWR | O_CLOEXEC) < 0 ? 100 : 0;
}

int cuCtxSetCurrent(void *context) { return context != &owed; }

int cuMemAlloc_v2(place *to, size_t size)
{
    const char *dir = getenv("FAKE_GPU_DIR");
    char path[512];
    FILE *file;

    snprintf(path, sizeof path, "%s/gpus/0/processes", dir ? dir : "/var/lib/fake-gpu");
    file = fopen(path, "w");
    if (!file)
        return 2;
    fprintf(file, "%d %zu\n", getpid(), size >> 20);
    *to = 1 << 20;
    return fclose(file) ? 2 : 0;
}

int cuMemsetD32_v2(place at, unsigned value, size_t words) { return !(at && value && words); }
int cuMemAllocHost_v2(void **to, size_t size) { return !(*to = malloc(size / 1024)); }
int cuMemFreeHost(void *at) { return free(at), 0; }

static int copy(size_t size, double rate)
{
    owed += size / rate;
    return 0;
}

int cuMemcpyHtoDAsync_v2(place to, const void *from, size_t size, void *stream)
{
    return !to || !from || stream || copy(size, 5e10);
}

int cuMemcpyDtoHAsync_v2(void *to, place from, size_t size, void *stream)
{
    return !to || !from || stream || copy(size, 5e10);
}

int cuMemcpyDtoDAsync_v2(place to, place from, size_t size, void *stream)
{
    return !to || !from || stream || copy(size, 1e12);
}

int cuModuleLoadData(void **module, const void *text)
{
    *module = &owed;
    return !strstr(text, ".target sm_75"); /* as a driver that knows no older target */
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return strcmp(name, "work");
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned i, unsigned j, unsigned k,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    (void)extra;
    owed += 0.007;
    return function != &owed || !x || !y || !z || !i || !j || !k || shared || stream || !*(place *)parameters[0] ||
           !*(unsigned *)parameters[1];
}

int cuCtxSynchronize(void)
{
    usleep((unsigned)(owed * 1e6));
    owed = 0;
    return 0;
}
