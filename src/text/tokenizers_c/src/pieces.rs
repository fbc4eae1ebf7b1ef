//! Long texts in pieces. The libraries take 150 to 200 bytes for a byte of a text that is encoded
//! at once. Where a tokenizer splits texts before it merges, a text is cut where it is split, and
//! the pieces have the tokens of the whole.
//!
//! A place may be cut when no part of the tokenizer looks across it: an added token, a replacement
//! or a match of a pattern never holds both letters beside it (`crossing`), and nothing that is put
//! in front of a text is put in front of the second piece. Then every part does the same on both
//! sides as in the whole. Whether the tokenizer also splits there is asked of a stretch
//! that begins and ends at such places, which by the same reasoning is split as the whole is.

use crate::crossing::{class_of, contains, judge, parse};
use crate::guard::Failure;
use regex_syntax::hir::{ClassUnicode, Hir};
use serde_json::Value;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizer, Tokenizer,
};

/// Pieces are about so long; shorter texts are not cut.
const PIECE: usize = 32 << 10;
/// The longest stretch that is encoded at once where it cannot be cut: about 800 MiB of memory.
pub const MAX_WHOLE: usize = 4 << 20;
/// Places where a text is split and not cut after all, before one is given up.
const MAX_TRIES: usize = 256;
/// Splits are looked for in so much of a text at once.
const WINDOW: usize = 64 << 10;

/// Letters before a cut, and behind it. None before is blank: patterns look ahead behind blanks.
const BEFORE: [&str; 12] = [
    r"\p{L}", r"\.", "!", r"\?", "\"", ",", ";", ":", r"\)", "。", "，", "”",
];
const BEHIND: [char; 8] = [' ', '\n', '，', '。', ',', '.', '、', '('];

/// The pattern of the ByteLevel pre-tokenizer, and what others split by.
const BYTE_LEVEL: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const WORDS: &str = r"\w+|[^\w\s]+";
const NUMBERS: &str = r"\p{N}+";

type Allowed = [[bool; BEHIND.len()]; BEFORE.len()];

pub struct Cuts {
    before: Vec<ClassUnicode>,
    /// Between which letters a text may be cut; none where the tokenizer cannot be judged.
    allowed: Option<Allowed>,
}

/// Why a text cannot be encoded.
pub fn too_long(bytes: usize) -> Failure {
    format!(
        "{bytes} bytes hold no place where this tokenizer surely splits a text, and at most {} MiB \
         are encoded at once; break the text into shorter documents, for example JSONL rows",
        MAX_WHOLE >> 20
    )
    .into()
}

fn normalized(tokenizer: &Tokenizer, text: &str) -> Option<String> {
    let mut string = NormalizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        normalizer.normalize(&mut string).ok()?;
    }
    Some(string.get().to_owned())
}

/// Where the parts end that a text is split into before it is encoded.
fn splits_of(tokenizer: &Tokenizer, text: &str) -> Result<Vec<usize>, Failure> {
    let added = tokenizer.get_added_vocabulary();
    let mut pieces = added.extract_and_normalize(tokenizer.get_normalizer(), text);
    if let Some(splitter) = tokenizer.get_pre_tokenizer() {
        splitter.pre_tokenize(&mut pieces)?;
    }
    let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.iter().map(|(_, (_, end), _)| *end).collect())
}

fn text_of<'a>(part: &'a Value, key: &str) -> &'a str {
    part.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn flag(part: &Value, key: &str, default: bool) -> bool {
    part.get(key).and_then(Value::as_bool).unwrap_or(default)
}

/// The parts of a sequence, nested ones in their order; the value itself where it is none.
fn parts_of<'a>(value: &'a Value, parts: &mut Vec<&'a Value>) {
    let inner = ["normalizers", "pretokenizers"].iter().find_map(|key| value.get(*key)?.as_array());
    match inner {
        Some(list) => list.iter().for_each(|part| parts_of(part, parts)),
        None if value.is_null() => {}
        None => parts.push(value),
    }
}

fn pattern_of(part: &Value) -> Option<Hir> {
    let pattern = part.get("pattern")?;
    match pattern.get("String").and_then(Value::as_str) {
        Some(text) => parse(&regex_syntax::escape(text)),
        None => parse(pattern.get("Regex")?.as_str()?),
    }
}

/// A pre-tokenizer as the pattern that it splits by, and what becomes of the matches.
fn split_of(part: &Value) -> Option<(Option<Hir>, &str)> {
    Some(match text_of(part, "type") {
        "ByteLevel" if flag(part, "use_regex", true) => (parse(BYTE_LEVEL), "Isolated"),
        // What splits at single letters joins none.
        "ByteLevel" | "Metaspace" | "WhitespaceSplit" | "BertPreTokenizer"
        | "CharDelimiterSplit" => (None, "Isolated"),
        "Punctuation" => match text_of(part, "behavior") {
            "Isolated" | "Removed" => (None, "Isolated"),
            _ => return None,
        },
        "Whitespace" => (parse(WORDS), "Removed"),
        "Digits" => (parse(NUMBERS), "Isolated"),
        "Split" => {
            let behavior = text_of(part, "behavior");
            let plain = matches!(behavior, "Isolated" | "Removed");
            if flag(part, "invert", false) && !plain {
                return None;
            }
            (Some(pattern_of(part)?), behavior)
        }
        _ => return None,
    })
}

/// Whether what a part puts in front of a text is there already where a piece begins with `behind`.
fn prefix_is_there(part: &Value, behind: char) -> bool {
    match text_of(part, "type") {
        "ByteLevel" => !flag(part, "add_prefix_space", true) || behind == ' ',
        "Metaspace" => {
            let scheme = text_of(part, "prepend_scheme");
            let replacement = text_of(part, "replacement");
            scheme == "never" || behind == ' ' || replacement.starts_with(behind)
        }
        _ => true,
    }
}

fn splits_alike(part: &Value, before: &ClassUnicode, behind: char) -> bool {
    let Some((pattern, behavior)) = split_of(part) else {
        return false;
    };
    if !prefix_is_there(part, behind) {
        return false;
    }
    let Some(pattern) = pattern else {
        return true;
    };
    let Some(edges) = judge(&pattern, before, behind) else {
        return false;
    };
    if edges.crosses || edges.empty {
        return false;
    }
    match behavior {
        "Isolated" | "Removed" => true,
        "MergedWithPrevious" => !edges.begins,
        "MergedWithNext" => !edges.ends,
        "Contiguous" => !(edges.begins && edges.ends),
        _ => false,
    }
}

fn normalizes_alike(part: &Value, before: &ClassUnicode, behind: char) -> bool {
    match text_of(part, "type") {
        // Letter by letter, or marks with the letter before them.
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Nmt"
        | "BertNormalizer" | "Precompiled" => true,
        "Replace" => pattern_of(part)
            .and_then(|pattern| judge(&pattern, before, behind))
            .is_some_and(|edges| !edges.crosses && !edges.empty),
        _ => false,
    }
}

/// Whether an added token may hold both letters, or reach over blanks behind it.
fn added_tokens_allow(
    tokenizer: &Tokenizer,
    before: &ClassUnicode,
    behind: char,
    image: char,
) -> bool {
    let is_before = |letter: char| contains(before, letter);
    tokenizer.get_added_vocabulary().get_added_tokens_decoder().values().all(|token| {
        let letters: Vec<char> = token.content.chars().collect();
        let holds = letters.windows(2).any(|two| is_before(two[0]) && two[1] == behind);
        let reaches = token.rstrip
            && behind.is_whitespace()
            && letters.last().is_some_and(|last| is_before(*last));
        // These are looked for in normalized texts.
        let inside = letters.iter().skip(1).any(|letter| *letter == behind || *letter == image);
        !holds && !reaches && !(token.normalized && inside)
    })
}

/// Patterns after these would see other letters than those that are judged.
fn in_order(parts: &[&Value]) -> bool {
    let changes = |part: &&Value| matches!(text_of(part, "type"), "ByteLevel" | "Metaspace");
    parts.iter().position(changes).is_none_or(|at| at + 1 == parts.len())
}

impl Cuts {
    pub fn new(tokenizer: &Tokenizer) -> Cuts {
        let before: Vec<ClassUnicode> = BEFORE.iter().filter_map(|c| class_of(c)).collect();
        let allowed = Self::judge_all(tokenizer, &before);
        Cuts { before, allowed }
    }

    fn judge_all(tokenizer: &Tokenizer, before: &[ClassUnicode]) -> Option<Allowed> {
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let splitter = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let (mut normalizers, mut splitters) = (Vec::new(), Vec::new());
        parts_of(&normalizer, &mut normalizers);
        parts_of(&splitter, &mut splitters);
        if !in_order(&splitters) || before.len() != BEFORE.len() {
            return None;
        }
        let mut allowed: Allowed = [[false; BEHIND.len()]; BEFORE.len()];
        for (b, behind) in BEHIND.iter().enumerate() {
            // What the patterns see in place of the letter.
            let image = normalized(tokenizer, &behind.to_string())?;
            let mut letters = image.chars();
            let (Some(image), None) = (letters.next(), letters.next()) else {
                continue;
            };
            for (a, class) in before.iter().enumerate() {
                let alike = |part: &&Value| normalizes_alike(part, class, *behind);
                allowed[a][b] = normalizers.iter().all(alike)
                    && splitters.iter().all(|part| splits_alike(part, class, image))
                    && added_tokens_allow(tokenizer, class, *behind, image);
            }
        }
        Some(allowed)
    }

    fn may_cut(&self, allowed: &Allowed, before: char, behind: char) -> bool {
        let Some(b) = BEHIND.iter().position(|letter| *letter == behind) else {
            return false;
        };
        let mut classes = self.before.iter().enumerate();
        classes.any(|(a, class)| allowed[a][b] && contains(class, before))
    }

    /// The first place from `from` on that may be cut; the end of the text is one.
    fn next_place(&self, allowed: &Allowed, text: &str, from: usize) -> usize {
        let mut at = from.min(text.len());
        while !text.is_char_boundary(at) {
            at += 1;
        }
        let mut before = text[..at].chars().next_back();
        for (index, letter) in text[at..].char_indices() {
            if before.is_some_and(|b| self.may_cut(allowed, b, letter)) {
                return at + index;
            }
            if index > MAX_WHOLE {
                break;
            }
            before = Some(letter);
        }
        text.len()
    }

    fn is_place(&self, allowed: &Allowed, text: &str, at: usize) -> bool {
        if !text.is_char_boundary(at) {
            return false;
        }
        let (left, right) = text.split_at(at);
        let sides = left.chars().next_back().zip(right.chars().next());
        sides.is_some_and(|(before, behind)| self.may_cut(allowed, before, behind))
    }

    /// The last place before `place` that may be cut, or `first`, which is one.
    fn place_before(&self, allowed: &Allowed, text: &str, first: usize, place: usize) -> usize {
        let mut behind = None;
        for (index, letter) in text[first..place].char_indices().rev() {
            if behind.is_some_and(|b| self.may_cut(allowed, letter, b)) {
                return first + index + letter.len_utf8();
            }
            behind = Some(letter);
        }
        first
    }

    /// Whether the stretch, which is split at `place`, is encoded as its two parts are.
    fn is_cut(
        &self,
        tokenizer: &Tokenizer,
        stretch: &str,
        place: usize,
    ) -> Result<bool, Failure> {
        // The letters of both sides are normalized alone.
        let (left, right) = stretch.split_at(place);
        let last = left.chars().next_back().map(String::from).unwrap_or_default();
        let first = right.chars().next().map(String::from).unwrap_or_default();
        let both = normalized(tokenizer, &format!("{last}{first}"));
        let image = normalized(tokenizer, &last);
        let same_class = |a: &str, b: &str| {
            let class = |text: &str| {
                let letter = text.chars().next_back()?;
                self.before.iter().position(|class| contains(class, letter))
            };
            class(a).is_some() && class(a) == class(b)
        };
        let apart = normalized(tokenizer, &first).zip(image.clone()).map(|(b, a)| a + &b);
        if both != apart || !image.is_some_and(|image| same_class(&image, &last)) {
            return Ok(false);
        }
        let ids = |text: &str| -> Result<Vec<u32>, Failure> {
            Ok(tokenizer.encode_fast(text, false)?.get_ids().to_vec())
        };
        let mut parts = ids(left)?;
        parts.extend(ids(right)?);
        Ok(parts == ids(stretch)?)
    }

    /// The first place some way behind `begin` where the text is cut.
    fn find_cut(
        &self,
        tokenizer: &Tokenizer,
        allowed: &Allowed,
        text: &str,
        begin: usize,
    ) -> Result<Option<usize>, Failure> {
        // Windows and stretches begin and end at places that may be cut.
        let mut before = self.next_place(allowed, text, begin + PIECE - PIECE / 16);
        let mut tries = 0;
        while before < text.len() && before - begin <= MAX_WHOLE {
            let end = self.next_place(allowed, text, before + WINDOW);
            if end - before > MAX_WHOLE {
                break;
            }
            for split in splits_of(tokenizer, &text[before..end])? {
                let place = before + split;
                if split == 0 || !self.is_place(allowed, text, place) {
                    continue;
                }
                let behind = self.next_place(allowed, text, place + 1);
                let from = self.place_before(allowed, text, before, place);
                if self.is_cut(tokenizer, &text[from..behind], place - from)? {
                    return Ok(Some(place));
                }
                tries += 1;
                if tries == MAX_TRIES {
                    return Ok(None);
                }
            }
            before = end;
        }
        Ok(None)
    }

    /// The end of the piece that begins at `begin`, a place where the text is cut or its begin.
    pub fn end_of_piece(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        begin: usize,
    ) -> Result<usize, Failure> {
        let rest = text.len() - begin;
        if rest <= 2 * PIECE {
            return Ok(text.len());
        }
        if let Some(allowed) = &self.allowed {
            if let Some(place) = self.find_cut(tokenizer, allowed, text, begin)? {
                return Ok(place);
            }
        }
        if rest > MAX_WHOLE {
            return Err(too_long(rest));
        }
        Ok(text.len())
    }
}
