"""Answers made to hang, to run as code or to confuse who reads mathematics: bounded, never right, harming no other."""

from __future__ import annotations

import json
import random
from functools import partial

from tests.campaign.stage import Stage
from tests.train.data.test_bad_input import garbled
from tests.train.online.test_rewards_pool import boxed, results

COUNT = 180
STATUSES = {"timeout", "memory", "too_long", "error", "no_answer", "crashed"}
CODE = "__import__('os').mkdir('@CANARY@')"
HOSTILE: dict[str, str] = {
    "a tower of powers": r"\boxed{9^{9^{9^{9}}}}",
    "a tower with stars": r"\boxed{9**9**9**9}",
    "a power of ten": r"\boxed{10^{10^{10}}}",
    "a factorial": r"\boxed{(10^9)!}",
    "factorials": r"\boxed{9!!!!!!!!}",
    "a double factorial": r"\boxed{99999999!!}",
    "a sum without end": r"\boxed{\sum_{i=1}^{10^{12}} \frac{1}{i^2}}",
    "a product without end": r"\boxed{\prod_{i=1}^{10^9} i}",
    "an integral": r"\boxed{\int_0^\infty \frac{\sin(x^x)}{x^{x^x}} dx}",
    "a limit": r"\boxed{\lim_{x \to 0} \frac{\sin(\tan x) - \tan(\sin x)}{x^{77}}}",
    "a derivative": r"\boxed{\frac{d^{99}}{dx^{99}} x^{x^x}}",
    "a matrix of powers": r"\boxed{\begin{pmatrix} 9^{9^9} & 1 \\ 1 & 9^{9^9} \end{pmatrix}^{10^9}}",
    "a determinant": r"\boxed{\det\begin{pmatrix}" + "&".join("abcdefghij") + r"\end{pmatrix}}",
    "a large matrix": r"\boxed{\begin{pmatrix}"
    + r"\\".join("&".join(["1"] * 20) for _ in range(20))
    + r"\end{pmatrix}}",
    "a polynomial": r"\boxed{(x+y+z+w)^{500}}",
    "a power of letters": r"\boxed{x^{1000000}}",
    "a product of sums": r"\boxed{" + "".join(f"(x+{i})" for i in range(200)) + "}",
    "roots of roots": r"\boxed{" + r"\sqrt{2+" * 60 + "2" + "}" * 60 + "}",
    "fractions of fractions": r"\boxed{" + r"\frac{1}{1+" * 60 + "1" + "}" * 60 + "}",
    "cosines of cosines": r"\boxed{" + r"\cos(" * 100 + "1" + ")" * 100 + "}",
    "logarithms of logarithms": r"\boxed{" + r"\log(" * 80 + "10^{10^{10}}" + ")" * 80 + "}",
    "a binomial": r"\boxed{\binom{10^{10}}{10^9}}",
    "a remainder": r"\boxed{2^{10^{100}} \bmod 7}",
    "a set": r"\boxed{\{" + ",".join(map(str, range(400))) + r"\}}",
    "an interval": r"\boxed{(-\infty, 10^{10^{10}}]}",
    "an equation": r"\boxed{x^{17}+3x^{11}+x^5 = 9^{9^9}}",
    "inequalities": r"\boxed{" + "<".join("abcdefghijkl") + "}",
    "absolute values": r"\boxed{" + "|" * 500 + "6" + "|" * 500 + "}",
    "a recurring decimal": r"\boxed{0." + "3" * 1800 + "}",
    "a long number": r"\boxed{" + "9" * 1990 + "}",
    "a number with commas": r"\boxed{" + ",".join(["999"] * 400) + "}",
    "a tiny number": r"\boxed{1e-999999999}",
    "a huge number": r"\boxed{1e999999999}",
    "a base": r"\boxed{" + "1" * 500 + r"_{10^{9}}}",
    "degrees": r"\boxed{6" + r"^\circ" * 200 + "}",
    "per cent": r"\boxed{6" + r"\%" * 500 + "}",
    "brackets": r"\boxed{" + "(" * 900 + ")" * 900 + "}",
    "braces": r"\boxed{" + "{" * 900 + "}" * 900 + "}",
    "left and right": r"\boxed{" + r"\left(" * 300 + "6" + r"\right)" * 300 + "}",
    "braces without end": "{" * 10_000,
    "brackets without end": "(" * 10_000,
    "dollars": "$" * 10_000,
    "boxes without end": r"\boxed{" * 10_000,
    "boxes in boxes": r"\boxed{" * 9000 + "}" * 9000,
    "backslashes": "\\" * 20_000,
    "carets": r"\boxed{" + "^" * 1000 + "}",
    "underscores": r"\boxed{" + "x_" * 900 + "}",
    "ampersands": r"\boxed{" + "&" * 1500 + "}",
    "commands": r"\boxed{" + r"\x" * 900 + "}",
    "text": r"\boxed{" + r"\text{" * 300 + "6" + "}" * 300 + "}",
    "environments": r"\boxed{" + r"\begin{array}" * 100 + r"\end{array}" * 100 + "}",
    "many answers": "\n".join(rf"\boxed{{{i}}}" for i in range(6, 3000)),
    "many dollars": "".join(f"${i}$ " for i in range(6, 3000)),
    "NUL and escapes": "\\boxed{\x00\x1b[31m6\x07}",
    "half a character": "\\boxed{\ud800 6}",
    "an override": "\\boxed{\u202e6}",
    "digits of other scripts": r"\boxed{٦६६}",
    "full-width digits": r"\boxed{６}",
    "superscripts": r"\boxed{9⁹⁹⁹⁹}",
    "combining marks": r"\boxed{6" + "\u0301" * 1900 + "}",
    "zero-width": r"\boxed{6" + "\u200b" * 1900 + "}",
    "a megabyte": "x" * 1_000_000,
    "a megabyte of digits": "9" * 1_000_000,
    "a megabyte of signs": "-" * 1_000_000 + "6",
    "blank": " " * 100_000,
    "nothing": "",
    "a tag without end": "<think>" * 20_000,
    "a format without end": "<think>\n" + "a" * 50_000 + "\n</think" * 500,
    "as that ends with b": "a" * 40 + "b",
    "spaces before an end": "<answer>" + " " * 50_000,
    "numbers with signs": "+-" * 20_000 + "6",
    "exponents": "1e" * 20_000,
    "points": "1." * 20_000,
    "fractions in a row": "1/" * 20_000,
    "hashes": "#### " * 10_000 + "6",
    **{
        f"code {i}": text
        for i, text in enumerate(
            (
                rf"\boxed{{{CODE}}}",
                f"${CODE}$",
                rf"\[{CODE}\]",
                rf"\boxed{{\text{{{CODE}}}}}",
                f"The final answer is {CODE}.",
                f"#### {CODE}",
                rf"\boxed{{lambda: {CODE}}}",
                rf"\boxed{{[{CODE} for x in (1,)]}}",
                r"\boxed{eval('" + CODE.replace("'", '"') + "')}",
                r"\boxed{exec(" + CODE + ")}",
                r"\boxed{().__class__.__bases__[0].__subclasses__()}",
                r"\boxed{\operatorname{" + CODE + "}}",
                r"\boxed{Symbol('x').__class__.mro()}",
                r"\boxed{\input{/etc/passwd}}",
                r"\boxed{\write18{mkdir @CANARY@}}",
                r"\boxed{\immediate\write18{mkdir @CANARY@}}",
                r"\boxed{$(mkdir @CANARY@)}",
                r"\boxed{`mkdir @CANARY@`}",
                r"\boxed{; mkdir @CANARY@ ;}",
                "\\boxed{{{ cycler.__init__.__globals__.os.mkdir('@CANARY@') }}}",
            )
        )
    },
}
VALID = [
    r"\frac{3}{4}",
    "x^2+1",
    r"\{1, 2, 3\}",
    "(0, 1]",
    r"\sqrt{17}",
    r"2\pi",
    "1,234.5",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
]
VALID += [
    r"\frac{-b \pm \sqrt{b^2-4ac}}{2a}",
    "3:4",
    r"45^\circ",
    r"12\%",
    "x=3",
    "a<b",
    r"\text{Tuesday}",
    r"10^{-3}",
    "7_8",
]
GROWTH = [
    "^{",
    "}",
    "9^{9",
    "!",
    r"\frac{",
    "(",
    ")",
    r"\sum_{i=1}^{",
    "**",
    "e9",
    r"\left(",
    ",",
    r"\cdot",
    "^9",
    r"\int ",
]
PATTERN = "(a+)+c"


def answer(number: int, seed: int, canary: str) -> tuple[str, str, bool]:
    """Return an answer's name and text, and whether it is hostile by hand: then it cannot be right."""
    if number < len(HOSTILE):
        name = list(HOSTILE)[number]
        return name, HOSTILE[name].replace("@CANARY@", canary), True
    rng = random.Random(f"answer {number} {seed}")
    text = rng.choice(VALID)
    for _ in range(rng.choice([1, 2, 4, 40])):
        at, kind = rng.randrange(len(text) + 1), rng.randrange(3)
        if kind == 0:
            text = text[:at] + rng.choice(GROWTH) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at:] * rng.choice([2, 2, 3])
        else:
            text = garbled(text.encode(), rng).decode(errors="replace")
        text = text[:1900]
    return f"mutated answer {number}", rf"\boxed{{{text}}}", False


def judged(text: str) -> int:
    """Let every verifier judge an answer, each between two right ones; write the verdicts down."""
    from humanline.train.online.rewards.pool import Pool

    kinds: list[dict] = [{"kind": kind, "completion": text, "reference": "5"} for kind in ("math", "number")]
    kinds += [{"kind": "format", "completion": text, "pattern": PATTERN}, {"kind": "tag_count", "completion": text}]
    right = boxed(r"\frac{10}{2}")
    pool = Pool(1, seconds=1.5, memory=512, math=True)
    try:
        verdicts = results(pool, [one for kind in kinds for one in (right, kind)] + [right])
    finally:
        pool.close()
    with open("verdicts.json", "w", encoding="utf-8") as file:
        json.dump([[verdict.value, verdict.status, verdict.reason] for verdict in verdicts], file)
    return 0


def play(stage: Stage) -> None:
    stage.name, text, hostile = answer(stage.number, stage.seed, str(stage.canary))
    if stage.run(work=partial(judged, text), allowed=(0,)).code != 0:
        return
    verdicts = json.loads((stage.folder / "verdicts.json").read_text(encoding="utf-8"))
    stage.expect(all(one[0] == 1 for one in verdicts[::2]), f"a right answer beside it is {verdicts[::2]}")
    for kind, (value, status, reason) in zip(("math", "number", "format", "tag_count"), verdicts[1::2], strict=True):
        stage.count(status)
        stage.expect((value is None) == (status != "ok"), f"{kind}: value {value} with status {status}")
        stage.expect(value is not None or status in STATUSES, f"{kind}: an unknown status {status}: {reason}")
        stage.expect(
            all(char.isprintable() for char in reason), f"{kind}: a reason that is not fit to show: {reason!a}"
        )
        if hostile and kind != "tag_count":
            stage.expect(value in (None, 0.0), f"{kind}: a hostile answer is worth {value}")
