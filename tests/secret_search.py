# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Looks on a machine for secrets where nobody may find them. Of what is found, the place is said.

The secrets come on stdin, so that this search is no process that has them in its own arguments.
"""

import collections.abc

# Files that hold a secret must be for their owner alone, who is root or one of Concourse's or
# PostgreSQL's own; those from before the machine was made are its host's. So must the environment
# of a process. What processes have in their arguments and what is logged is for everybody who can
# look. Without braces around names, which systemd-run would take for its own.
SEARCH = r"""
set -u
umask 077
list=$(mktemp /dev/shm/search.XXXXXX)
trap 'rm -f "$list"' EXIT
cat >"$list"
own='^[46]00 (root|concourse|postgres)$'
for process in /proc/[0-9]*; do
  grep -qaFf "$list" "$process/cmdline" 2>&- && echo "arguments of $process"
done
journalctl --no-pager -o cat 2>&- | grep -qaFf "$list" && echo "journal"
grep -rlaFf "$list" --exclude-dir=journal /var/log 2>&- | sed 's/^/log /'
find /etc /opt /run /run/lock /dev/shm /tmp /var/tmp /var/lib /var/backups /var/cache /var/spool \
  /usr/local /root /srv /home /mnt -xdev \
  \( -path /srv/repo -o -path /srv/release -o -path /srv/packages -o -name 'gpuci-made-*' \
  -o -path '/var/lib/concourse/*' -o -path '/run/log/*' \) -prune \
  -o -type f -size -16384k -newerct "$(stat -c %z /etc/machine-id)" -print0 2>&- |
xargs -0r grep -laFf "$list" 2>&- | sort -u |
while read -r file; do
  case $file in /var/lib/postgresql/*) continue;; esac
  stat -c '%a %U' "$file" | grep -qE "$own" || echo "file $file"
done
for process in /proc/[0-9]*; do
  grep -qaFf "$list" "$process/environ" 2>&- || continue
  stat -c '%a %U' "$process/environ" | grep -qE "$own" || echo "environment of $process"
done
true
"""


def leaks(
    run: collections.abc.Callable[[str, str], str], secrets: collections.abc.Iterable[str]
) -> list[str]:
    """Where a machine shows one of these secrets; nothing where it keeps them all.

    Args:
        run: runs a shell script with a text on its stdin, as root; its output.
        secrets: at least a line of each; of several lines, one that is its alone.
    """
    return run(SEARCH, "\n".join(lines(secrets)) + "\n").splitlines()


def lines(secrets: collections.abc.Iterable[str]) -> list[str]:
    """What is looked for: of a secret with several lines the longest, which is its alone."""
    found = [max(secret.splitlines(), key=len) for secret in secrets]
    assert all(len(line) >= 8 for line in found), "too short to be told from other text"
    return found
