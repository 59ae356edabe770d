// Copyright 2026 The gpu-ci-worker authors
// See LICENSE file for licensing details.
//
// hold COMMAND...: take a lock for each GPU that this container was told, then become COMMAND. The locks last as
// long as any process that inherits them, which is what "in use" means for a GPU. A lock that somebody else has is
// written to /scratch/clashes; what was asked for and what was got to /scratch/ran.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(const char *path, const char *line) {
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (file < 0 || dprintf(file, "%s\n", line) < 0) {
        exit(9);
    }
    close(file);
}

int main(int count, char **words) {
    const char *told = getenv("NVIDIA_VISIBLE_DEVICES"), *asked = getenv("GPU_COUNT");
    int held = 0;
    if (count < 2 || !told || !asked) {
        return 8;
    }
    umask(0);
    char *list = strdup(told);
    for (char *gpu = strtok(list, ","); gpu; gpu = strtok(NULL, ",")) {
        char path[4096];
        snprintf(path, sizeof path, "/scratch/held/%s", gpu);
        int lock = open(path, O_RDWR | O_CREAT, 0666);
        if (lock < 0) {
            return 7;
        }
        if (flock(lock, LOCK_EX | LOCK_NB)) {
            note("/scratch/clashes", gpu);
        }
        held++;
    }
    char line[64];
    snprintf(line, sizeof line, "%s %d", asked, held);
    note("/scratch/ran", line);
    execvp(words[1], words + 1);
    return 6;
}
