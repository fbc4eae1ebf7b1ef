//! Decides whether a match of a regular expression can span two adjacent letters: one of a set and
//! a given one behind it. "No" is certain: then a text cut between the two letters has the same
//! matches as the whole text.

use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind};
use regex_syntax::Parser;

/// The first and last letters that matches of an expression may have.
#[derive(Clone, Copy)]
pub struct Edges {
    /// A match may begin with the letter behind the cut.
    pub begins: bool,
    /// A match may end with a letter before the cut.
    pub ends: bool,
    pub empty: bool,
    pub crosses: bool,
}

const NOTHING: Edges = Edges {
    begins: false,
    ends: false,
    empty: true,
    crosses: false,
};

pub fn contains(class: &ClassUnicode, letter: char) -> bool {
    let ranges = class.ranges();
    let after = ranges.partition_point(|range| range.start() <= letter);
    after > 0 && letter <= ranges[after - 1].end()
}

fn overlap(class: &ClassUnicode, other: &ClassUnicode) -> bool {
    let mut common = class.clone();
    common.intersect(other);
    !common.ranges().is_empty()
}

fn after(first: Edges, second: Edges) -> Edges {
    Edges {
        begins: first.begins || (first.empty && second.begins),
        ends: second.ends || (second.empty && first.ends),
        empty: first.empty && second.empty,
        crosses: first.crosses || second.crosses || (first.ends && second.begins),
    }
}

fn edges(expression: &Hir, before: &ClassUnicode, behind: char) -> Option<Edges> {
    Some(match expression.kind() {
        HirKind::Empty => NOTHING,
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            text.chars().fold(NOTHING, |edge, letter| {
                let one = Edges {
                    begins: letter == behind,
                    ends: contains(before, letter),
                    empty: false,
                    crosses: false,
                };
                after(edge, one)
            })
        }
        HirKind::Class(class) => {
            let class = match class {
                Class::Unicode(class) => class.clone(),
                Class::Bytes(class) => class.to_unicode_class()?,
            };
            Edges {
                begins: contains(&class, behind),
                ends: overlap(&class, before),
                empty: false,
                crosses: false,
            }
        }
        // Anchors and word boundaries depend on letters across the cut.
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let mut one = edges(&repetition.sub, before, behind)?;
            one.empty |= repetition.min == 0;
            one.crosses |= repetition.max != Some(1) && one.ends && one.begins;
            one
        }
        HirKind::Capture(capture) => edges(&capture.sub, before, behind)?,
        HirKind::Concat(parts) => {
            let mut all = NOTHING;
            for part in parts {
                all = after(all, edges(part, before, behind)?);
            }
            all
        }
        HirKind::Alternation(parts) => {
            let mut any = Edges {
                empty: false,
                ..NOTHING
            };
            for part in parts {
                let edge = edges(part, before, behind)?;
                any.begins |= edge.begins;
                any.ends |= edge.ends;
                any.empty |= edge.empty;
                any.crosses |= edge.crosses;
            }
            any
        }
    })
}

/// Parses a pattern. Returns None for unsupported syntax, mainly look-around. `\s+(?!\S)` is
/// accepted: it looks ahead only from behind a blank, and a cut is never behind a blank.
pub fn parse(pattern: &str) -> Option<Hir> {
    let mut plain = pattern.to_owned();
    for blanks in [r"\s+", r"\s*", r"\s"] {
        plain = plain.replace(&format!("{blanks}(?!\\S)"), blanks);
    }
    Parser::new().parse(&plain).ok()
}

/// Returns the letters of a class such as `\p{L}`.
pub fn class_of(pattern: &str) -> Option<ClassUnicode> {
    match Parser::new().parse(pattern).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        HirKind::Literal(literal) => {
            let letter = std::str::from_utf8(&literal.0).ok()?.chars().next()?;
            Some(ClassUnicode::new([regex_syntax::hir::ClassUnicodeRange::new(letter, letter)]))
        }
        _ => None,
    }
}

/// Returns None if the expression cannot be analyzed.
pub fn judge(expression: &Hir, before: &ClassUnicode, behind: char) -> Option<Edges> {
    edges(expression, before, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    const CL100K: &str = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );

    fn crosses(pattern: &str, before: &str, behind: char) -> Option<bool> {
        let class = class_of(before).unwrap();
        judge(&parse(pattern)?, &class, behind).map(|edges| edges.crosses)
    }

    #[test]
    fn published_patterns_are_cut_between_words_and_where_punctuation_ends_a_line() {
        for pattern in [GPT2, CL100K] {
            assert_eq!(crosses(pattern, r"\p{L}", ' '), Some(false));
            assert_eq!(crosses(pattern, r"\p{L}", '\n'), Some(false));
            assert_eq!(crosses(pattern, r"\p{L}", 'a'), Some(true));
            assert_eq!(crosses(pattern, " ", 'a'), Some(true));
        }
        assert_eq!(crosses(GPT2, r"\.", '\n'), Some(false));
        assert_eq!(crosses(CL100K, r"\.", '\n'), Some(true));
    }

    #[test]
    fn what_looks_around_or_is_no_pattern_is_not_judged() {
        for pattern in [r"\bword", r"a(?=b)", r"(?<=a)b", r"^a", r"(", r"a(?!\S)"] {
            assert_eq!(crosses(pattern, r"\p{L}", ' '), None, "{pattern}");
        }
    }

    #[test]
    fn repetitions_and_optional_parts_join_what_is_beside_them() {
        assert_eq!(crosses(r"(?:\p{L} ?)+", r"\p{L}", ' '), Some(true));
        assert_eq!(crosses(r"\p{L}\d? ", r"\p{L}", ' '), Some(true));
        assert_eq!(crosses(r"\p{L}\d ", r"\p{L}", ' '), Some(false));
        assert_eq!(crosses("ab cd", r"\p{L}", ' '), Some(true));
    }
}
