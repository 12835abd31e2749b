# SPDX-License-Identifier: Apache-2.0
"""Does output end in a question, and was the same question asked again and again.

Words on a screen are weak evidence: a diagnosis uses them beside facts about the process, never alone.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]|\x1b[=>78cDEHM]"
)
_CHOICE = r"[\[(](?:y(?:es)?|n(?:o)?|a(?:ll)?)(?:\s*[/|,]\s*\w+)+(?:/\[\w+\])?\??[\])]"
_WORDS = (
    r"password|passphrase|passcode|username|login|user|name|e-?mail|choice|answer|selection|otp|token|code|pin|"
    r"continue|proceed|overwrite|enter|confirm"
)
# Ends of a line nobody ended: a question mark, a colon, a choice, a shell-like prompt sign followed by a
# space.
_UNTERMINATED = re.compile(
    rf"(?i)(?:{_CHOICE}\s*[:?>]?|\?|[^\s:]:|[\])]\s|(?:^|[\w.\])~-])\s?[>$#%]+\s|^[>$#]|>>>\s?|\s[\u203a\u276f]"
    rf"|press (?:any|enter|return)\b.*|\(end\)|--more--.*)\s*$"
)
# Questions that stay questions when the program ends the line or says that it gives up.
_STRONG = re.compile(
    rf"(?i)(?:{_CHOICE}\s*[:?>]?|\b(?:password|passphrase)\b[^:]{{0,60}}:)"
    r"\s*(?:(?:operation |command )?(?:abort|cancel|exit|no input|eof|quit)\w*.{0,40})?$"
)
_NOT_A_PROMPT = re.compile(
    r"(?i)\b(?:error|errno|warn(?:ing)?|fail(?:ed|ure)?|exception|fatal|traceback|panic|info|debug|trace|notice)\b|https?:$"
    r"|^\d{2,4}[-/:]\d\d|^\["
)
_ASKED = re.compile(rf"(?i)^(.{{0,120}}?(?:{_CHOICE}\s*[:?>]?|(?:\?|:|>)(?:\s+{_CHOICE}\s*[:?>]?)?))(?:\s+|$)(.*)$")


def ended_on_prompt(tail: bytes) -> str | None:
    """The last line of `tail`, if it looks like a question that got no answer; at most 200 characters.

    Not promised: a question that ends in an ordinary sentence is missed, and a program may end its output
    in a colon without asking anything.
    """
    text = _plain(tail[-2000:])
    last = text.rsplit("\n", 1)[-1]
    if last.strip():
        if _STRONG.search(last) or (_UNTERMINATED.search(last[-160:]) and not _is_document(last)):
            return last.strip()[-200:]
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and _STRONG.search(lines[-1]) and not _NOT_A_PROMPT.search(lines[-1]):
        return lines[-1].strip()[-200:]
    return None


def prompt_loop(tail: bytes) -> str | None:
    """The prompt, if `tail` shows the same question at least three times close together; at most 120
    characters.

    Not promised: a program that prints "word word: text" for ever looks the same. Check that it reads
    end-of-input.
    """
    counts: dict[str, int] = {}
    lines = [line.strip() for line in _plain(tail[-4000:]).split("\n") if line.strip()]
    for line in lines[-24:]:
        for question in _questions(line):
            counts[question] = counts.get(question, 0) + 1
    best = max(counts, key=lambda question: counts[question], default=None)
    return best if best is not None and counts[best] >= 3 else None


def repeated_line(tail: bytes) -> str:
    """One of the last lines, if it was printed at least three times apart from its numbers; else ""."""
    lines = [line.strip() for line in tail[-4000:].splitlines() if line.strip()]
    shapes = [re.sub(rb"\d+(\.\d+)?", b"#", line) for line in lines]
    for shape, line in list(zip(shapes, lines, strict=True))[-3:]:
        if shapes.count(shape) >= 3:
            return _plain(line)[:80]
    return ""


def _questions(line: str) -> list[str]:
    """The questions asked in one line: several where nobody ended the line."""
    found: list[str] = []
    while len(found) < 64 and (match := _ASKED.match(line)):
        question, line = match[1].strip(), match[2]
        if not _is_question(question):
            break
        found.append(question[:120])
    return found


def _is_question(text: str) -> bool:
    if _NOT_A_PROMPT.search(text):
        return False
    if re.search(rf"(?i)(?:{_CHOICE}\s*[:?>]?|\?)$", text) or re.search(rf"(?i)\b(?:{_WORDS})\W*$", text):
        return True
    return (text.endswith(":") and " " in text) or (text.endswith(">") and not text.startswith("<"))


def _is_document(line: str) -> bool:
    """JSON, markup and tracebacks end in brackets and colons too."""
    start = line.lstrip()[:1]
    return start in ("{", "<") or (start == "[" and line.rstrip()[-1:] == "]" and not line.endswith(" "))


def _plain(tail: bytes) -> str:
    text = _ESCAPES.sub(b"", tail).decode("utf-8", "replace").replace("\r\n", "\n")
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join(lines).replace("\0", "").replace("\x07", "")
