/* SPDX-License-Identifier: Apache-2.0 */
/* A fork bomb that spins: every process ignores signals, makes more processes in sessions of their own, for ever.
 * Only to be run under a limit on processes. With "leave" the first process ends and the bomb stays. Should a boundary fail
 * to end it, it ends by itself after LIFETIME_S. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIFETIME_S 12

int main(int count, char **words) {
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
    if (write(1, "READY\n", 6) != 6)
        return 1;
    if (count > 1 && strcmp(words[1], "leave") == 0 && fork() != 0)
        return 0;
    for (time_t end = time(NULL) + LIFETIME_S; time(NULL) < end;)
        if (fork() == 0)
            setsid();
    return 0;
}
