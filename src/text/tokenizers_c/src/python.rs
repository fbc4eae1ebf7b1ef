//! Formats values as Python does: `json.dumps` for chat templates and `str()` for printed values.

use crate::budget::{measure, need_text};
use crate::Failure;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;
use std::fmt::Write;

/// Formats as `repr(float)`: shortest round-trip digits, exponent below 1e-4 and from 1e16.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let fixed = format!("{number}");
    if fixed.contains('.') {
        fixed
    } else {
        fixed + ".0"
    }
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if (control as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other if ascii && (other as u32) >= 0x7f => {
                let mut units = [0u16; 2];
                for unit in other.encode_utf16(&mut units) {
                    if *unit == 0x7f {
                        out.push('\u{7f}');
                    } else {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// The options of `json.dumps`.
struct JsonStyle {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl JsonStyle {
    fn line_break(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn number(number: &serde_json::Number) -> String {
        if number.is_f64() {
            return match number.as_f64() {
                Some(real) => float_repr(real),
                None => number.to_string(),
            };
        }
        number.to_string()
    }

    fn write(&self, value: &Json, depth: usize, out: &mut String) {
        match value {
            Json::Null => out.push_str("null"),
            Json::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Json::Number(number) => out.push_str(&Self::number(number)),
            Json::String(text) => json_string(text, self.ascii, out),
            Json::Array(list) if list.is_empty() => out.push_str("[]"),
            Json::Array(list) => {
                out.push('[');
                for (index, item) in list.iter().enumerate() {
                    if index > 0 {
                        out.push_str(&self.item_separator);
                    }
                    self.line_break(depth + 1, out);
                    self.write(item, depth + 1, out);
                }
                self.line_break(depth, out);
                out.push(']');
            }
            Json::Object(map) if map.is_empty() => out.push_str("{}"),
            Json::Object(map) => {
                let mut members: Vec<(&String, &Json)> = map.iter().collect();
                if self.sort_keys {
                    members.sort_by(|a, b| a.0.cmp(b.0));
                }
                out.push('{');
                for (index, (key, item)) in members.into_iter().enumerate() {
                    if index > 0 {
                        out.push_str(&self.item_separator);
                    }
                    self.line_break(depth + 1, out);
                    json_string(key, self.ascii, out);
                    out.push_str(&self.key_separator);
                    self.write(item, depth + 1, out);
                }
                self.line_break(depth, out);
                out.push('}');
            }
        }
    }
}

/// Converts a value to JSON; keys become strings.
fn as_json(value: &Value) -> Result<Json, Error> {
    Ok(match value.kind() {
        ValueKind::None => Json::Null,
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::String => Json::String(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => match value.as_i64() {
            Some(number) if value.is_integer() => number.into(),
            _ => match u64::try_from(value.clone()) {
                Ok(number) if value.is_integer() => number.into(),
                _ => f64::try_from(value.clone())?.into(),
            },
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Result<Vec<Json>, Error> =
                value.try_iter()?.map(|item| as_json(&item)).collect();
            Json::Array(items?)
        }
        ValueKind::Map => {
            let mut map = serde_json::Map::new();
            for key in value.try_iter()? {
                map.insert(to_str(&key)?, as_json(&value.get_item(&key)?)?);
            }
            Json::Object(map)
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: {kind} is not JSON serializable"),
            ))
        }
    })
}

/// Converts JSON to a template value; members keep their order.
pub fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::String(text) => Value::from(text.as_str()),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Array(list) => Value::from(list.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), from_json(item))))
        }
    }
}

fn text_or(value: Option<Value>, default: &str) -> Result<String, Error> {
    match value {
        None => Ok(default.to_owned()),
        Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                "tojson: a separator is no string",
            )
        }),
    }
}

/// Implements transformers' `tojson`: ensure_ascii off, keys in order, no HTML escapes.
pub fn to_json(value: &Value, positional: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let extent = measure(std::slice::from_ref(value))?;
    let given = |value: Option<Value>| value.filter(|v| !v.is_none() && !v.is_undefined());
    // ensure_ascii is the first parameter, as in transformers.
    let ascii = given(positional.or(kwargs.get("ensure_ascii")?)).is_some_and(|v| v.is_true());
    let indent = match given(kwargs.get("indent")?) {
        None => None,
        Some(value) => Some(match (value.as_str(), value.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) => " ".repeat(width.clamp(0, 64) as usize),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: indent is no number",
                ))
            }
        }),
    };
    let separators = given(kwargs.get("separators")?);
    let part = |index: usize| -> Result<Option<Value>, Error> {
        separators
            .as_ref()
            .map(|s| s.get_item_by_index(index))
            .transpose()
    };
    let style = JsonStyle {
        ascii,
        item_separator: text_or(part(0)?, if indent.is_some() { "," } else { ", " })?,
        key_separator: text_or(part(1)?, ": ")?,
        indent,
        sort_keys: given(kwargs.get("sort_keys")?).is_some_and(|v| v.is_true()),
    };
    kwargs.assert_all_used()?;
    let indent = style.indent.as_ref().map_or(0, String::len) as u64;
    let separators = (style.item_separator.len() + style.key_separator.len()) as u64;
    let between = extent.values.saturating_mul(separators);
    need_text(extent.written(indent).saturating_add(between))?;
    let json = as_json(value)?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(Value::from(out))
}

/// Returns false for letters that `repr` escapes: format, private, and blanks other than space.
fn is_printable(letter: char) -> bool {
    let hidden = letter.is_control()
        || (letter != ' ' && letter.is_whitespace())
        || matches!(letter as u32,
            0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890 | 0x891 | 0x8e2 | 0x180e
            | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff
            | 0xfdd0..=0xfdef | 0xfeff | 0xfff0..=0xfffb | 0xfffe | 0xffff | 0x110bd | 0x110cd
            | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
            | 0xe0000..=0xe00ff | 0xe01f0..=0x10ffff);
    !hidden
}

fn string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(same);
            }
            shown if is_printable(shown) => out.push(shown),
            hidden => {
                let number = hidden as u32;
                let _ = match number {
                    0..=0xff => write!(out, "\\x{number:02x}"),
                    0x100..=0xffff => write!(out, "\\u{number:04x}"),
                    _ => write!(out, "\\U{number:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() {
                ("(", ")")
            } else {
                ("[", "]")
            };
            out.push_str(open);
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, out)?;
            }
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&to_str(value)?),
    }
    Ok(())
}

/// Formats as `str(value)`, for `{{ value }}`; an undefined value gives no text.
pub fn to_str(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(real) => float_repr(real),
            Err(_) => value.to_string(),
        },
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            need_text(measure(std::slice::from_ref(value))?.written(0))?;
            let mut out = String::new();
            write_repr(value, &mut out)?;
            out
        }
        _ => value.to_string(),
    })
}

/// Python's blanks are Unicode's and the four separators U+001C to U+001F.
pub fn is_blank(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A date, at midnight.
#[derive(Clone, Copy)]
pub struct Date {
    year: i64,
    month: usize,
    day: i64,
}

impl Date {
    /// Parses the form "2024-07-26".
    pub fn parse(text: &str) -> Result<Date, Failure> {
        let wrong = || -> Failure { format!("'{text}' is no date such as 2024-07-26").into() };
        if text.len() != 10 || !text.is_ascii() {
            return Err(wrong());
        }
        let number =
            |range: std::ops::Range<usize>| text[range].parse::<i64>().map_err(|_| wrong());
        let date = Date {
            year: number(0..4)?,
            month: number(5..7)? as usize,
            day: number(8..10)?,
        };
        let dashes = text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
        let valid = dashes && (1..=12).contains(&date.month) && date.day >= 1;
        if !valid || date.day > date.days_in_month() {
            return Err(wrong());
        }
        Ok(date)
    }

    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_in_month(&self) -> i64 {
        match self.month {
            2 => 28 + i64::from(self.is_leap()),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Uses Sakamoto's rule; 0 is Sunday.
    fn weekday(&self) -> usize {
        const SHIFTS: [i64; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = self.year - i64::from(self.month < 3);
        let days = year + year / 4 - year / 100 + year / 400 + SHIFTS[self.month - 1] + self.day;
        days.rem_euclid(7) as usize
    }

    pub fn strftime(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                out.push(letter);
                continue;
            }
            let mut directive = letters.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = letters.next();
            }
            let month = MONTHS[self.month - 1];
            let weekday = WEEKDAYS[self.weekday()];
            let padded = |number: i64| match unpadded {
                true => number.to_string(),
                false => format!("{number:02}"),
            };
            out.push_str(&match directive {
                Some('Y') => self.year.to_string(),
                Some('y') => padded(self.year % 100),
                Some('m') => padded(self.month as i64),
                Some('d') => padded(self.day),
                Some('B') => month.into(),
                Some('b' | 'h') => month[..3].into(),
                Some('A') => weekday.into(),
                Some('a') => weekday[..3].into(),
                Some('H' | 'M' | 'S') => padded(0),
                Some('I') => "12".into(),
                Some('p') => "AM".into(),
                Some('%') => "%".into(),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("strftime_now: '{format}' holds a directive that is not known"),
                    ))
                }
            });
        }
        Ok(out)
    }
}
