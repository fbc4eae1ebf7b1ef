//! The types of plain scalars as PyYAML's safe loader decides them (YAML 1.1): `yes` is a boolean,
//! `0o17` and `1e-4` are strings, `017` is fifteen and `1:30` is ninety.

use regex::Regex;
use serde_json::{Number, Value};
use std::sync::LazyLock;

// The patterns of yaml/resolver.py.
static INTEGER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+")
});
static REAL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*")
});
// PyYAML takes no sign before a point.
static FRACTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?$").unwrap());

fn pattern(unsigned: &str) -> Regex {
    Regex::new(&format!("^[-+]?(?:{unsigned})$")).unwrap()
}

/// Returns the value of a plain scalar. What JSON has no form for stays a string: dates, infinity,
/// NaN, and integers of more than 64 bits.
pub fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => true.into(),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => false.into(),
        _ => number(text).map_or_else(|| text.into(), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if !text.starts_with([
        '-', '+', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9',
    ]) {
        return None;
    }
    let spelled = text.replace('_', "");
    let digits = spelled.trim_start_matches(['-', '+']);
    let negative = spelled.starts_with('-');
    if INTEGER.is_match(text) {
        let magnitude = integer(digits)?;
        return match negative {
            true => Some(0i64.checked_sub_unsigned(magnitude)?.into()),
            false => Some(magnitude.into()),
        };
    }
    if !REAL.is_match(text) && !FRACTION.is_match(text) {
        return None;
    }
    // A number with colons has the base 60.
    let magnitude = digits.split(':').try_fold(0.0, |value, part| {
        Some(value * 60.0 + part.parse::<f64>().ok()?)
    })?;
    Number::from_f64(if negative { -magnitude } else { magnitude })
}

fn integer(digits: &str) -> Option<u64> {
    if let Some(bits) = digits.strip_prefix("0b") {
        return u64::from_str_radix(bits, 2).ok();
    }
    if let Some(hexadecimal) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hexadecimal, 16).ok();
    }
    if digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).ok();
    }
    digits.split(':').try_fold(0u64, |value, part| {
        value.checked_mul(60)?.checked_add(part.parse().ok()?)
    })
}
