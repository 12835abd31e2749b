# SPDX-License-Identifier: Apache-2.0
while True:
    try:
        if input("Your name: "):
            break
    except EOFError:
        print("Please answer.", flush=True)
