/* SPDX-License-Identifier: Apache-2.0 */
/* Prints READY and sleeps a minute; with "once" it ends; with "leave" it ends and leaves a sleeping child behind. */
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (strcmp(how, "leave") == 0 && fork() == 0)
        return sleep(60);
    if (write(1, "READY\n", 6) != 6)
        return 1;
    return *how == 0 ? sleep(60) : 0;
}
