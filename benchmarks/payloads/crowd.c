/* SPDX-License-Identifier: Apache-2.0 */
/* crowd N [leave]: N descendants that ignore every signal and have left their parent and session (double fork, setsid
 * twice). Prints READY when all of them live, then pauses; with "leave" it ends and they stay.
 * Should a boundary fail to end them, they end by themselves after LIFETIME_S. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIFETIME_S 60

int main(int count, char **words) {
    int wanted = count > 1 ? atoi(words[1]) : 200, leave = count > 2 && strcmp(words[2], "leave") == 0;
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
            if (fork() == 0) {
                setsid();
                if (write(up[1], "x", 1) != 1)
                    _exit(1);
                sleep(LIFETIME_S);
                _exit(0);
            }
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    for (int i = 0; i < wanted; i++)
        if (read(up[0], &byte, 1) != 1)
            return 1;
    if (write(1, "READY\n", 6) != 6)
        return 1;
    if (!leave)
        sleep(LIFETIME_S);
    return 0;
}
