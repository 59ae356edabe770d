/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * mapper NODE: a process that maps a device, and has no descriptor of it any more. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words)
{
    int node = count == 2 ? open(words[1], O_RDWR) : -1;
    if (node < 0 || mmap(0, 4096, PROT_READ, MAP_PRIVATE, node, 0) == MAP_FAILED)
        return 1;
    close(node);
    for (;;)
        pause();
}
