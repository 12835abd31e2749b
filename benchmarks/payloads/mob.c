/* SPDX-License-Identifier: Apache-2.0 */
/* mob N: N processes, each in a session of its own and deaf to every signal, half of them out of their parent's reach; every
 * tenth forks for ever, a child at a time. Prints READY when all of them live.
 * Should a boundary fail to end them, they end by themselves after LIFETIME_S. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIFETIME_S 60

static void be_hostile(int number, time_t end) {
    struct timespec pause = {0, 5000000};
    while (number % 10 == 0 && time(NULL) < end) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child > 0)
            waitpid(child, NULL, 0);
        nanosleep(&pause, NULL);
    }
    while (time(NULL) < end)
        sleep(LIFETIME_S);
    _exit(0);
}

int main(int count, char **words) {
    int wanted = count > 1 ? atoi(words[1]) : 200;
    time_t end = time(NULL) + LIFETIME_S;
    int up[2];
    char byte;
    for (int number = 1; number < 32; number++)
        if (number != SIGCHLD)
            signal(number, SIG_IGN);
    if (pipe(up) != 0)
        return 1;
    for (int i = 0; i < wanted; i++) {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            if (i % 2 && fork() != 0)
                _exit(0);
            setsid();
            if (write(up[1], "x", 1) != 1)
                _exit(1);
            be_hostile(i, end);
        }
        if (i % 2)
            waitpid(child, NULL, 0);
    }
    for (int i = 0; i < wanted; i++)
        if (read(up[0], &byte, 1) != 1)
            return 1;
    if (write(1, "READY\n", 6) != 6)
        return 1;
    sleep(LIFETIME_S);
    return 0;
}
