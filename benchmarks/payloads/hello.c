/* SPDX-License-Identifier: Apache-2.0 */
/* Prints READY and pauses; with "once" it ends; with "leave" it ends and leaves a paused child behind. */
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (strcmp(how, "leave") == 0 && fork() == 0)
        for (;;)
            pause();
    if (write(1, "READY\n", 6) != 6)
        return 1;
    while (*how == 0)
        pause();
    return 0;
}
