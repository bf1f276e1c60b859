"""Unicode folding, the pattern of a letter, and runs of scripts written without spaces."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["CJK_RUN", "LETTER", "cjk_runs", "fold"]

# Scripts whose vowel signs Python does not count as alphanumeric: their whole blocks are letters.
_INDIC = "\u0900-\u0963\u0966-\u0dff\u0f00-\u0fff\u1a20-\u1aaf"
# Scripts written without spaces between words, and Hangul, where bigrams match stems despite endings.
_CJK = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u3105-\u312f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
LETTER = rf"(?:[^\W_]|[{_INDIC}{_CJK}])"
CJK_RUN = re.compile(rf"([{_CJK}]+)")
_COMBINING = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u200c\u200d\ufe00-\ufe0f]"
)
_LOOKALIKE = str.maketrans(
    {
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ð": "d",
        "æ": "ae",
        "Æ": "Ae",
        "œ": "oe",
        "Œ": "Oe",
        "ı": "i",
        "ß": "ss",
        "’": "'",
        "ʼ": "'",
        "\u2010": "-",
        "\u2011": "-",
    }
)


def fold(text: str, /) -> str:
    """The text with compatibility forms and accents removed (`Müller` → `Muller`, full-width `Ａ１` → `A1`)."""
    bare = _COMBINING.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", bare).translate(_LOOKALIKE)  # composed again for kana and hangul


def cjk_runs(text: str, /) -> list[str]:
    """The text split into pieces; every second one is a run of a script without spaces."""
    return CJK_RUN.split(text)
