"""The English of comments, texts and documents: words to avoid, short sentences and lines, short commit subjects.

`/usr/bin/python3 tests/lint/test_words.py --report [PATH...]` lists the findings, `--counts` prints measures of the tree.
Both work on the git checkout that contains the current directory.
"""
import bisect
import collections
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SENTENCE_WORDS = 25  # the longest sentence of a comment or document
SUBJECT_CHARS = 60  # the longest subject of a commit
SUBJECTS_SINCE = "a6d4431937a1"  # the commit that introduced these rules; subjects of later commits are judged
COLUMNS = 100  # of C and proto, as in .clang-format and .editorconfig

SERVICES = ("common/", "gateway/", "proposer-svc/", "verifier-svc/")  # their string literals reach users
SKIPPED = ("tests/fuzz/corpus/", "tests/golden/data/", "shared/")

# Files in which a room is a folder of code.
ROOM_FILES = re.compile(r"docs/(architecture|testing)\.md$|tests/lint/|(.*/)?CMakeLists\.txt$")

# A count, with at most three words before "at once", shows that the phrase means "simultaneously".
COUNT = (r"(?:\d[\d,.]*|%\w+|\w+_\w+|\bn\b|\b(?:all|both|several|many|more|most|few|whole|entire|two|three|four|five|six|seven|eight|"
         r"nine|ten|twelve|sixteen|hundred|thousand)\b)")
# "Behind a proxy" is a place. Tokens, rows and bytes come after each other.
SHELTER = r"(?:prox|balancer|door|gateway|firewall|nat\b|interface|api\b|abstraction)"
VERB = r"(?:is|are|was|were|has|have|had|wants?|waits?|asks?|needs?|gets?|holds?|runs?|comes?|came|looks?|only|does|knows?|drafts?)"

ROOM = "memory, capacity, space"
# Each entry: the searched pattern, what to write instead, and an example that must be found. The text is in lower case. If the
# pattern has a group, only that group counts. A line holds one comment, string or paragraph, so ^ is the beginning of one.
BANNED = [
    (r"\breckon(?:s|ed|ings?)?\b", "calculate, estimate, expect, count", "the time that it was reckoned to take"),
    (r"\bof late\b(?! (?:drafts?|answers?|proposers?|tokens?|rounds?|repl)\w*)", "recently", "what it granted of late"),
    (r"\b(?:anew|afresh)\b", "again", "started anew"),
    (r"\bin vain\b", "without result; wasted; unused", "bytes read in vain"),
    (r"\b(?:by|in) turns\b", "alternately, interleaved", "both are timed in turns"),
    (r"\bdear(?:er|est)?\b", "expensive, costly", "a try is dear"),
    (r"\bwho(?:so)?ever\b", "any client (thread, caller) that ...", "admits whoever can be"),
    (r"\b(?:beg[aiu]ns?|starts?|started|ends?|ended) alike\b", "share a prefix, have a common prefix", "prompts that begin alike"),
    (rf"{COUNT}(?:[^\w\n.;:]+[\w'-]+){{0,3}}[^\w\n.;:]+at once\b|\b(at once)\b",
     "immediately; in one step; concurrently (with a number: \"4 at once\")", "is refused at once"),
    (r"\b(?:go|goes|going|went|gone) on\b(?! (?:the (?:wire|disk|line|stack)|disk|top)\b)", "continue(s), proceed(s)",
     "the others go on without it"),
    (r"\b(?:let|lets|letting) go\b", "release(d), unreference(d)", "was let go of first"),
    (r"\b(?:is|are|was|were|be|been|being|gets?|got) (?:\w+ly |not |never |also |only )?told\b(?! to\b)|\btold (?:of|apart)\b",
     "reported, notified, instructed; distinguished (told apart)", "fn is told of every block"),
    (r"^likewise\b|[;:.] likewise[.;]", "repeat the fact that is the same", "likewise"),
    (rf"\bwho has (?:some|none|one)\b|\bwhat (?:is|was) so\b|(?:^|[.;] )who {VERB} (?![^.;\n]*\?)|"
     r"\b(?:for|of|to|by|from|than|only|without|beside|behind|let in) who\b",
     "a noun for the clause: the sequences that ..., the caller that ...", "only who has a row is waited for"),
    (r"(?:^|[.;] )what (?:is|was|are|were|has|had|can|cannot|does|comes|came|goes|stands|fits|fails|takes|went)\b[^.?:;\n]*?[^.?:;,\n]"
     r"(?<!\bthat)(?<!\bwhich)(?<!\bwho)(?<!\bit) (?:is|are|was|were|has|have|does|stays?|goes|shows?|costs?|must|may|tells?|makes?|gives?)\b(?!\?)",
     "a noun for the clause: \"What cannot be read is left out\" -> \"Unreadable files are skipped\"", "What cannot be read is left out."),
    (r"\bany ?more\b(?! (?:than|of)\b)", "no longer", "nobody wants it any more"),
    (r"\bnobody (?:holds|held)\b", "unreferenced", "blocks that nobody holds"),
    (r"\bof (?:its|their|our|his|your|one's) own\b", "its own ..., a separate ..., a dedicated ...", "a thread of its own"),
    (r"\bas far as\b", "up to; where; if; to the extent that", "as far as the hint"),
    (r"\blaws?\b(?![.(_])", "distribution, probabilities", "the law of the target"),
    (r"\brooms?\b(?![.(_])", ROOM, "there is room for n rows"),
    (r"\b(?:not|only)\b[^.;\n]*\bbut for\b|\b(but for)\b", "except (for)", "all services but for the gateway"),
    (r"\b(?:at most|of|for|in|only|than|until|after|takes?|and) so (?:many|long|much)\b(?! (?:as|that|longer|more)\b)|"
     r"^(?:until |waits )?so (?:many|long|much)\b(?! (?:as|that)\b)",
     "name the quantity: \"at most timeout_ms\", \"n_rows rows\"", "waits at most so long"),
    (rf"\bbehind\b[^.;\n]{{0,24}}{SHELTER}|(?:left|fall\w*|lag\w*|fell|is|are|was|were|not) behind(?=[.;,)\n])|\b(behind)\b",
     "after (order), next to (place)", "the row behind the last one"),
    (r"\bfrom which on\b", "from ... on; when there are at least n ...", "running sequences from which on"),
    (r"\bof before\b", "earlier, previous", "0.9 of before"),
    (r"\b(?:to be|are|is|was) had\b", "available", "rows that are to be had"),
    (r"\b(?:has|have|had) not(?=[.;,:)\n])", "does not have", "numbers gRPC has not."),
    (r"\boftener\b|\bnow and then\b", "more often; occasionally", "pings oftener"),
]
ALLOWED = [  # sentences in which nothing may be found
    "Up to 4 streams run at once.", "all at once", "%u choices at once", "KERNEL_ROWS rows at once", "reserves the whole pool at once",
    "the number of late drafts", "It goes on the wire as one message.", "The service runs behind a reverse proxy.", "The reader falls behind.",
    "those who hold a reference", "Who is logged in?", "What is a draft?", "lawn", "roommate", "mem_limit.h (was room.c)", "not slow but for a reason",
    "no longer than the prompt", "as long as", "so many that they do not fit", "any more than that", "a turn of the loop", "in turn",
    "The count of likewise-named files.", "What is known of a block that is in it.", "The gateway was told to read it again.",
    "The verifier reports each block that leaves the index.",
]
PATTERNS = [(re.compile(pattern, re.M), instead) for pattern, instead, _ in BANNED]

Block = collections.namedtuple("Block", "lines")  # one comment, string or paragraph: a list of (line number, text)
Finding = collections.namedtuple("Finding", "path line found instead")


# ---- what is read of a file ----

C_FILES = (".c", ".h", ".proto", ".S")
C_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
JS_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`|'
                       r'(?<=[=(,:?&|!]) ?/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/', re.S)
PY_TOKENS = re.compile(r'^[ \t]*[rf]?""".*?"""|"""(?:\\.|[^\\])*?"""|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S | re.M)
HASH = re.compile(r"(?:^|(?<=\s))#(?![!{])+[ ]?(.*)$")


def numbered(text, first):
    return list(enumerate(text.split("\n"), first))


def comment_lines(token, line):
    """The text of a comment or docstring, line by line, without its markers. Further indentation stays: it marks a drawing."""
    if token.startswith(("//", "#")):
        return [(line, re.sub(r"^(?://|#+) ?", "", token).rstrip())]
    if token.startswith("/*"):
        rows = numbered(token[2:-2], line)
        return [(n, re.sub(r"^\s*\* ?|^ (?=\S)", "", row).rstrip()) for n, row in rows]
    indent = re.match(r"\s*", token).group()  # of a docstring
    return [(n, row.removeprefix(indent)) for n, row in numbered(re.sub(r'^\s*[rf]?"""|"""$', "", token), line)]


def unescape(token):
    return re.sub(r'\\[nt]|\\"', " ", token[1:-1])


def coded(text, tokens, with_strings):
    """Comments and, on request, string literals of C, JavaScript or Python. Neighbours that continue one another are joined."""
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    comments, strings = [], []
    joins, string_end = None, None  # line on which a // comment may continue; end of the last string
    for m in tokens.finditer(text):
        token = m.group()
        line = bisect.bisect_right(starts, m.start())
        is_line = token.startswith(("//", "#"))
        if is_line or token.startswith("/*") or re.match(r'\s*[rf]?"""', token) and not text[starts[line - 1]:m.start()].strip():
            alone = not text[starts[line - 1]:m.start()].strip()
            if is_line and alone and joins == line:
                comments[-1].lines.extend(comment_lines(token, line))
            elif not token.startswith("#!"):
                comments.append(Block(comment_lines(token, line)))
            joins = line + 1 if is_line and comments else None
        elif with_strings and token[0] in "\"'`" and len(token) > 3:
            rows = numbered(unescape(token), line)
            if string_end is not None and not text[string_end:m.start()].strip(" \n\t"):
                strings[-1].lines.extend([(n, "\0" + row) for n, row in rows])
            else:
                strings.append(Block(rows))
            string_end = m.end()
    return comments, strings


def hashed(text):
    """Comments that begin with #: shell scripts, CMake, settings."""
    comments, joins = [], None
    for number, line in enumerate(text.split("\n"), 1):
        m = HASH.search(line) if "#" in line else None
        if not m or line[:m.start()].count('"') % 2 or line[:m.start()].count("'") % 2:
            continue
        if not line[:m.start()].strip() and joins == number:
            comments[-1].lines.append((number, m.group(1)))
        else:
            comments.append(Block([(number, m.group(1))]))
        joins = number + 1
    return comments


def shell_texts(text):
    """What a script prints: here-documents and quoted words."""
    heres = [m for m in re.finditer(r"<<-?'?(\w+)'?\n(.*?)\n\1$", text, re.S | re.M)]
    blocks = []
    for m in heres:
        first = text.count("\n", 0, m.start(2)) + 1
        blocks.extend(Block([row]) for row in numbered(m.group(2), first))
    for number, line in enumerate(text.split("\n"), 1):
        blocks.extend(Block([(number, quoted)]) for quoted in re.findall(r'"([^"]* [^"]*)"', line))
    return blocks


def paragraphs(text, with_tables=True):
    """Prose of Markdown: paragraphs and list items. Without code blocks and headings."""
    blocks, lines, in_code = [], [], False

    def close():
        if lines:
            blocks.append(Block(lines.copy()))
            lines.clear()

    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip().lstrip(">").strip()
        if re.match(r"```|~~~", bare):
            in_code = not in_code
            close()
        elif in_code or not bare or re.match(r"#+ |[-=*]{3,}$|<!--", bare):
            close()
        elif bare.startswith("|"):
            close()
            if with_tables:
                blocks.append(Block([(number, bare)]))
        elif line.startswith("    ") and not lines:
            continue
        else:
            item = re.match(r"(?:[-*+]|\d+\.) +(.*)", bare)
            if item:
                close()
            lines.append((number, item.group(1) if item else bare))
    close()
    return blocks


def html_texts(text):
    text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    attributes = r'(?:title|placeholder|alt|aria-label)="([^"]*)"'
    return [Block([(n, " ".join(re.findall(attributes, row) + [re.sub(r"<[^>]*>", " ", row)]))])
            for n, row in enumerate(text.split("\n"), 1) if row.strip()]


def tokens_of(path):
    """Comments and strings in the file's language; None: its comments begin with #, or it has none."""
    return C_TOKENS if path.endswith(C_FILES) else JS_TOKENS if path.endswith((".js", ".mjs", ".css")) else \
        PY_TOKENS if path.endswith(".py") else None


def is_script(path, text):
    return text.startswith("#!") or path.endswith(".sh")


def has_hashes(path, text):
    name = os.path.basename(path)
    return is_script(path, text) or name.endswith((".txt", ".cmake", ".env", ".conf", ".in", ".socket", ".yml")) or \
        name in ("env", ".clang-tidy", ".gitignore")


def texts(path, text):
    """All blocks of a file in which words are searched."""
    if tokens_of(path):
        return sum(coded(text, tokens_of(path), path.startswith(SERVICES)), [])
    if path.endswith(".md"):
        return paragraphs(text, with_tables=path != "docs/configuration.md")  # its tables are the services' strings
    if path.endswith(".html"):
        return html_texts(text)
    if has_hashes(path, text):
        return hashed(text) + (shell_texts(text) if is_script(path, text) else [])
    return []


# ---- findings ----

def joined(blocks):
    """One line for each paragraph of each block, and the places where pieces of it begin: (offset, line number)."""
    out, offsets, numbers, length = [], [], [], 0
    for block in blocks:
        for i, (number, row) in enumerate(block.lines):
            glued = row.startswith("\0")
            row = row[1:] if glued else row.lstrip()
            ends = i + 1 == len(block.lines) or not row or not block.lines[i + 1][1].strip()
            piece = row + ("\n" if ends else "" if block.lines[i + 1][1].startswith("\0") else " ")
            offsets.append(length)
            numbers.append(number)
            out.append(piece)
            length += len(piece)
    return "".join(out), offsets, numbers


def banned(path, blocks):
    text, offsets, numbers = joined(blocks)
    lower = text.lower()
    if len(lower) != len(text):  # a letter whose small form is longer
        lower = text
    found = []
    for pattern, instead in PATTERNS:
        if instead == ROOM and ROOM_FILES.match(path):
            continue
        for m in pattern.finditer(lower):
            group = 1 if pattern.groups else 0
            if m.group(group) is None:
                continue
            at = m.start(group)
            while text[at] in " .;:\n":
                at += 1
            line = numbers[bisect.bisect_right(offsets, at) - 1]
            found.append(Finding(path, line, " ".join(text[at:m.end(group)].split()), instead))
    return found


ABBREVIATIONS = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|fig|no|approx|resp|incl|max|min|ca)|\.\.)\.$", re.I)
CITATION = re.compile(r"\((?:[^()]|\([^()]*\))*(?:arXiv:|doi:|https?:)[^()]*\)")


def sentences(block):
    """(line number, words) of each sentence of a block. Code is one word, a link is its text, a citation is one word."""
    words = []
    text, offsets, numbers = joined([block])
    text = re.sub(r"`+[^`\n]+`+", lambda m: "\x01" * len(m.group()), text)
    text = re.sub(r"!?\[([^\]\n]*)\]\([^)\s]*\)", lambda m: m.group(1).ljust(len(m.group()), "\x02"), text)
    text = CITATION.sub(lambda m: "\x01" * len(m.group()), text)
    for m in re.finditer(r"\n|[^\s\x02]+", text):
        word = m.group()
        end = word == "\n"
        if not end:
            if re.search(r"[^\W_]|\x01", word):
                words.append((m.start(), word))
            bare = word.rstrip("\"')]*_»”")
            end = bool(words) and bare.endswith((".", "!", "?")) and bare.strip(".") and not ABBREVIATIONS.search(bare)
        if end and words:
            first = numbers[bisect.bisect_right(offsets, words[0][0]) - 1]
            yield first, [w for _, w in words]
            words = []


def is_drawing(row):
    return bool(re.match(r"\s{2,}\S", row) or re.search(r"\S {3,}\S|-->|<--|\|  ", row))


def without_drawings(comments):
    """The paragraphs and list items of comments, without drawings, tables and formulas."""
    for comment in comments:
        lines, in_item = [], False
        for number, row in comment.lines:
            item = re.match(r"\s*(?:[-*]|\d+\.)\s+(\S.*)", row)
            if item or not row.strip() or (is_drawing(row) and not in_item):
                if lines:
                    yield Block(lines)
                lines = []
                in_item = bool(item)
                if item:
                    lines = [(number, item.group(1))]
            else:
                lines = lines + [(number, row)]
        if lines:
            yield Block(lines)


def prose(path, text):
    """The blocks of a file in which sentences are measured: comments and documents, without tables and strings."""
    if path.endswith(".md"):
        return paragraphs(text, with_tables=False)
    if tokens_of(path):
        return without_drawings(coded(text, tokens_of(path), False)[0])
    return without_drawings(hashed(text)) if has_hashes(path, text) else []


def long_sentences(path, text):
    for block in prose(path, text):
        for line, words in sentences(block):
            if len(words) > SENTENCE_WORDS:
                begin = " ".join("`...`" if "\x01" in w else w for w in words[:6])
                yield Finding(path, line, f"{begin} ... ({len(words)} words)", f"at most {SENTENCE_WORDS} words in a sentence")


def long_lines(path, text):
    """Lines of comments of C and proto; clang-format judges the code. An address cannot be broken."""
    if not path.endswith(C_FILES):
        return
    rows = text.split("\n")
    for number in sorted({number for comment in coded(text, C_TOKENS, False)[0] for number, _ in comment.lines}):
        row = rows[number - 1]
        if len(row) > COLUMNS and "://" not in row:
            yield Finding(path, number, f"a line of {len(row)} columns", f"at most {COLUMNS} columns")


def scars(path, text):
    """What an automatic reflow leaves: the end of a comment on a line by itself, a value on the line after its #define."""
    if not path.endswith((".c", ".h")):
        return
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.strip() == "*/":
            yield Finding(path, i + 1, "*/ alone on its line", f"close the comment on its last line of text ({COLUMNS} columns)")
        m = re.match(r"(#\s*define \w+)\s*\\$", line)
        value = lines[i + 1] if m and i + 1 < len(lines) else "\\"
        bare = re.sub(r"\s*(?://|/\*).*", "", value).strip() if '"' not in value else value.strip()
        if not value.endswith("\\") and len(m.group(1)) + 1 + len(bare) <= COLUMNS:
            yield Finding(path, i + 1, m.group(1) + " \\", "name and value on one line, its comment above")


# ---- the tree ----

def git(root, *arguments):
    run = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    return run.stdout if run.returncode == 0 else None


def tree(root):
    listed = git(root, "ls-files", "-co", "--exclude-standard")
    if listed is None:  # no git, or not a checkout
        listed = "\n".join(os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)
    for path in sorted(set(listed.splitlines())):
        if not path.startswith(SKIPPED + ("build/", ".git/", "node_modules/")) and os.path.isfile(os.path.join(root, path)):
            yield path


TEXT_FILE = re.compile(r"\.(c|h|proto|S|js|mjs|css|py|md|html|sh|txt|cmake|env|conf|in|socket|yml)$|(^|/)[\w]+$|/?\.(clang-tidy|gitignore)$")


def sources(root, prefixes=("",)):
    for path in tree(root):
        if TEXT_FILE.search(path) and path.startswith(tuple(prefixes)):
            with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
                yield path, f.read()


class Findings:
    def __init__(self, root, prefixes=("",)):
        self.banned, self.long, self.scars = [], [], []
        for path, text in sources(root, prefixes):
            self.banned += banned(path, texts(path, text))
            self.long += [*long_sentences(path, text), *long_lines(path, text)]
            self.scars += scars(path, text)

    def all(self):
        return sorted(self.banned + self.long + self.scars, key=lambda f: (f.path, f.line))


def show(findings):
    return [f"{f.path}:{f.line}: {f.found} -> {f.instead}" for f in findings]


def subjects(root):
    """(hash and subject of the commits to judge, None), or (None, why there are none). A merge is not judged."""
    shallow = git(root, "rev-parse", "--is-shallow-repository")
    if shallow is None:
        return None, "not a git checkout"
    log = git(root, "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD")
    if log is None or shallow.strip() == "true":
        return None, f"a clone without the history since {SUBJECTS_SINCE}"
    return log.splitlines(), None


def long_subjects(lines):
    return [f"{line} ({len(subject)} characters)" for line in lines for subject in [line.split(" ", 1)[1]] if len(subject) > SUBJECT_CHARS]


# ---- the tests ----

def comment(text):
    return sum(coded(text, C_TOKENS, True), [])


class TheLint(unittest.TestCase):
    """That it finds what it should; a lint that finds nothing is silent, too."""

    def test_each_pattern_finds_its_example(self):
        for (pattern, _), (_, instead, example) in zip(PATTERNS, BANNED):
            found = banned("x.md", [Block([(1, example)])])
            self.assertIn(instead, [f.instead for f in found], f"{pattern.pattern} in: {example}")

    def test_plain_sentences_pass(self):
        for text in ALLOWED:
            self.assertEqual(banned("x.md", [Block([(1, text)])]), [], text)

    def test_comments_and_strings_are_searched_and_code_is_not(self):
        text = '/* It is done\n * of late at\n * once. */\nint anew; // in vain\nchar c = \'"\'; puts("it is " "dear");\nreckon(x);\n'
        self.assertEqual([(f.line, f.found) for f in sorted(banned("x.c", comment(text)), key=lambda f: f.line)],
                         [(2, "of late"), (2, "at once"), (4, "in vain"), (5, "dear")])
        self.assertEqual(len(banned("tests/x.c", texts("tests/x.c", text))), 3)  # without its strings
        script = '"""Done anew."""\nx = "anew"  # in vain\n'
        self.assertEqual([f.found for f in banned("x.py", texts("tests/x.py", script))], ["anew", "in vain"])
        self.assertEqual([f.line for f in banned("x", texts("x", "#!/bin/sh\n# of\n# late\nanew=$# # anew\nstep \"do it anew\"\n"))], [2, 4, 5])
        self.assertEqual([f.found for f in banned("x.md", texts("x.md", "Done anew.\n\n```\nanew\n```\n| a | dear |\n"))], ["anew", "dear"])

    def test_a_room_may_be_a_folder_where_the_layout_is_described(self):
        for path, n_found in [("docs/architecture.md", 0), ("tests/CMakeLists.txt", 0), ("tests/lint/x.py", 0), ("docs/api.md", 1)]:
            self.assertEqual(len(banned(path, [Block([(1, "A room of files.")])])), n_found, path)

    def test_sentences_are_measured(self):
        def lengths(text):
            return [len(words) for block in paragraphs(text, False) for _, words in sentences(block)]

        self.assertEqual(lengths("One two three. Four\nfive, e.g. six (seven `a b c` [eight nine](http://x.y/z).)\n"), [3, 8])
        self.assertEqual(lengths("## No heading\n\n- one two:\n  three\n- four\n\n      code here\n\n| a | b |\n\nEnd 1 ... 64 of 2.5 - all!\n"), [3, 1, 6])
        self.assertEqual(lengths("It stays (Sun, Li et al. 2024, arXiv:2403.10444). Next."), [3, 1])

    def test_a_sentence_of_26_words_is_found_in_files_of_all_kinds(self):
        forms = [("common/base/x.c", "/* {} */"), ("tests/unit/base/x.c", "int a;\n\n// {}\nint b;"), ("common/base/x.h", "int a; // {}"),
                 ("proto/x.proto", "message A {{\n    // - first\n    // - {}\n}}"), ("x.S", "/* x\n *\n * - {} */"), ("x.mjs", "f(); // {}"),
                 ("gateway/ui/x.js", "/* {} */"), ("x.css", "/* {} */"), ("x.py", 'def f():\n    """A line.\n\n    {}\n    """\n'),
                 ("x.py", "# {}"), ("x.sh", "# {}"), ("tandem", "#!/bin/sh\n# {}"), ("CMakeLists.txt", "# {}"), ("x.cmake", "f() # {}"),
                 ("README.md", "{}"), ("models/README.md", "- {}"), ("docs/x.md", "{}"), ("docs/results/x.md", "> {}")]
        for path, form in forms:
            for n_words, n_found in [(25, 0), (26, 1)]:
                found = list(long_sentences(path, form.format("One. " + "word; " * (n_words - 1) + "word.")))
                self.assertEqual(len(found), n_found, f"{path}: {found}")
        lines = "/* x.c - " + "word " * 20 + "\n * " + "word " * 5 + "\n * word. */\n"
        self.assertEqual([f.line for f in long_sentences("x.c", lines)], [1])

    def test_tables_drawings_and_code_are_not_sentences(self):
        many = "word " * 26
        for path, text in [("x.md", f"| {many} |\n\n```\n{many}\n```\n\n    {many}\n"), ("x.h", f"/* x\n *   a   {many} */"), ("x.mjs", f"//   {many}"),
                           ("x.py", f'def f():\n    """A.\n\n      {many}\n    """\n'), ("x.c", f'puts("{many}");'), ("x.html", many)]:
            self.assertEqual(list(long_sentences(path, text)), [], path)

    def test_long_lines_of_comments_are_seen(self):
        def lines(path, text):
            return [f.line for f in long_lines(path, text)]

        row = "// " + "x" * 97
        self.assertEqual(lines("x.c", f"{row}\n{row}x\n/* a\n * {row} */\n"), [2, 4])
        self.assertEqual(lines("x.proto", f"int a; {row}\n"), [1])
        self.assertEqual(lines("x.h", f"// https://{row}\nint {'x' * 100};\n"), [])
        self.assertEqual(lines("x.py", f"# {row}\n"), [])

    def test_scars_are_seen(self):
        text = "/* Text.\n */\n#define X   \\\n    4 // four\n#define Y  \\\n    f(1); \\\n    f(2)\n"
        self.assertEqual([f.line for f in scars("x.c", text)], [2, 3])

    def test_long_subjects_are_seen(self):
        self.assertEqual(len(long_subjects(["abc " + "x" * 60, "def " + "x" * 61])), 1)


class Words(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.found = Findings(ROOT)

    def none(self, findings):
        self.assertFalse(findings, "\n" + "\n".join(show(findings)))

    def test_words_are_plain_english(self):
        self.none(self.found.banned)

    def test_sentences_and_lines_are_short(self):
        self.none(self.found.long)

    def test_no_reflow_scars(self):
        self.none(self.found.scars)


class Commits(unittest.TestCase):
    def test_subjects_are_short(self):
        lines, why = subjects(ROOT)
        if lines is None:
            self.skipTest(why)
        self.assertFalse(long_subjects(lines), "\n" + "\n".join(long_subjects(lines)))


# ---- as a tool ----

def report(root, paths):
    prefixes = [os.path.relpath(os.path.abspath(p), root) for p in paths] or [""]
    found = Findings(root, [p.removeprefix(".") for p in prefixes]).all()
    for line in show(found):
        print(line)
    counts = collections.Counter("/".join(f.path.split("/")[:-1][:2]) or f.path for f in found)
    for prefix, count in sorted(counts.items()):
        print(f"{count:6} {prefix}")
    print(f"{len(found):6} in all")
    if not paths:
        lines, why = subjects(root)
        print("\n".join(long_subjects(lines)) if lines is not None else f"subjects: {why}")
    return 1 if found else 0


def comment_share(path, text):
    """(whole lines of comment, lines that are not blank)"""
    blank = {i for i, row in enumerate(text.split("\n"), 1) if not row.strip()}
    covered = set()
    rows = text.split("\n")
    for block in coded(text, C_TOKENS, False)[0]:
        covered |= {n for n, _ in block.lines if n not in blank and rows[n - 1].lstrip().startswith(("/*", "//", "*"))}
    return len(covered), len(rows) - len(blank)


def counts(root):
    shares, files, functions = (collections.defaultdict(lambda: [0, 0]), collections.Counter(), collections.Counter())
    sizes = collections.defaultdict(list)
    for path, text in sources(root):
        top = path.split("/")[0]
        if path.endswith((".c", ".h")):
            for i, n in enumerate(comment_share(path, text)):
                shares[top][i] += n
            # A brace in the first column after a parenthesis opens the body of a function, up to the next one.
            bodies = re.findall(r"\)\n\{\n(.*?)^\}", text, re.S | re.M)
            functions[top] += len(bodies)
            sizes[top] += [body.count("\n") for body in bodies]
        if path.endswith(".c"):
            files[os.path.dirname(path)] += 1
    found = Findings(root)
    print(f"sentences of more than {SENTENCE_WORDS} words, and comments of more than {COLUMNS} columns: {len(found.long)}")
    print(f"banned words: {len(found.banned)}")
    print(f"reflow scars: {len(found.scars)}")
    for top in sorted(shares):
        comments, lines = shares[top]
        median = sorted(sizes[top])[len(sizes[top]) // 2] if sizes[top] else 0
        print(f"{top}: {100 * comments / lines:.1f} % of {lines} lines are comments; {functions[top]} functions, median {median} lines")
    for folder in sorted(files):
        print(f"{files[folder]:5} .c files in {folder}")


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("--report", "--counts"):
        root = git(".", "rev-parse", "--show-toplevel")
        root = root.strip() if root else ROOT
        if sys.argv[1] == "--report":
            sys.exit(report(root, sys.argv[2:]))
        else:
            counts(root)
    else:
        unittest.main()


if __name__ == "__main__":
    main()
