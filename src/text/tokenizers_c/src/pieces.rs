//! Encodes long texts in pieces. The libraries need 150 to 200 bytes per byte of a text encoded at
//! once. If a tokenizer splits texts before it merges, a text is cut at such a split, and the
//! pieces have the tokens of the whole.
//!
//! A position is a candidate if no part of the tokenizer looks across it: no added token,
//! replacement or pattern match contains both adjacent letters (`crossing`), and no prefix is added
//! to the second piece. Then each part acts on both sides as in the whole text. Whether the
//! tokenizer splits at a candidate is tested on a stretch between two other candidates, which by
//! the same argument is split as in the whole text.

use crate::crossing::{class_of, contains, judge, parse};
use crate::Failure;
use regex_syntax::hir::{ClassUnicode, Hir};
use serde_json::Value;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizer, Tokenizer,
};

/// The approximate bytes of a piece; texts up to twice this size are not cut.
const PIECE: usize = 32 << 10;
/// The longest stretch that is encoded at once if it cannot be cut: about 800 MiB of memory.
pub const MAX_WHOLE: usize = 4 << 20;
/// The number of candidates that may fail before the search for a cut stops.
const MAX_TRIES: usize = 256;
/// The bytes of text that are searched for splits at once.
const WINDOW: usize = 64 << 10;

/// Letters before and behind a cut. None before is blank, since patterns look ahead behind blanks.
const BEFORE: [&str; 12] = [
    r"\p{L}", r"\.", "!", r"\?", "\"", ",", ";", ":", r"\)", "。", "，", "”",
];
const BEHIND: [char; 8] = [' ', '\n', '，', '。', ',', '.', '、', '('];

/// The pattern of the ByteLevel pre-tokenizer; WORDS and NUMBERS are those of other pre-tokenizers.
const BYTE_LEVEL: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const WORDS: &str = r"\w+|[^\w\s]+";
const NUMBERS: &str = r"\p{N}+";

type Allowed = [[bool; BEHIND.len()]; BEFORE.len()];

pub struct Cuts {
    before: Vec<ClassUnicode>,
    /// The pairs of letters that may be cut; None if the tokenizer cannot be analyzed.
    allowed: Option<Allowed>,
}

/// The error of a text that cannot be cut and is too long to encode at once.
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

/// Returns the ends of the parts that the pre-tokenizer makes of a text.
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

/// Flattens a sequence of parts in order; a part that is no sequence is returned itself.
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

/// Returns the pattern and the behavior of a pre-tokenizer; no pattern if it splits single letters.
fn split_of(part: &Value) -> Option<(Option<Hir>, &str)> {
    Some(match text_of(part, "type") {
        "ByteLevel" if flag(part, "use_regex", true) => (parse(BYTE_LEVEL), "Isolated"),
        // A split at single letters joins no letters.
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

/// Returns true if no prefix is added, or if a piece that begins with `behind` has it already.
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
        // These act letter by letter, or join marks with the letter before them.
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Nmt"
        | "BertNormalizer" | "Precompiled" => true,
        "Replace" => pattern_of(part)
            .and_then(|pattern| judge(&pattern, before, behind))
            .is_some_and(|edges| !edges.crosses && !edges.empty),
        _ => false,
    }
}

/// Returns true if no added token can contain both letters or strip blanks behind it.
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
        // Normalized tokens are matched in normalized text.
        let inside = letters.iter().skip(1).any(|letter| *letter == behind || *letter == image);
        !holds && !reaches && !(token.normalized && inside)
    })
}

/// These parts change letters, so a pattern behind them would see other letters than analyzed.
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
            // Patterns see the normalized letter.
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

    /// Returns the first candidate at or behind `from`; the end of the text is one.
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

    /// Returns the last candidate before `place`; `first` is one.
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

    /// Returns true if the stretch has the same tokens whole and split at `place`.
    fn is_cut(
        &self,
        tokenizer: &Tokenizer,
        stretch: &str,
        place: usize,
    ) -> Result<bool, Failure> {
        // The two letters must normalize alike alone and together.
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

    /// Returns the first cut that is at least 15/16 of a piece behind `begin`.
    fn find_cut(
        &self,
        tokenizer: &Tokenizer,
        allowed: &Allowed,
        text: &str,
        begin: usize,
    ) -> Result<Option<usize>, Failure> {
        // Windows and stretches begin and end at candidates.
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

    /// Returns the end of the piece that begins at `begin`, which is a cut or 0.
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
