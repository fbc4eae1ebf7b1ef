//! Builds the JSON value of a YAML text from the parser's events. Everything that a text can make
//! large is charged against the limits before it exists, aliases included.

use crate::scalar::resolve;
use c_interface::Failure;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};
use std::collections::HashMap;

#[repr(C)]
pub struct Limits {
    bytes: usize,
    depth: usize,
    values: usize,
}

/// Returns the value of the text's one document, null if it has none.
pub fn to_json(text: &[u8], limits: &Limits) -> Result<Value, Failure> {
    if text.len() > limits.bytes {
        return refuse(Place { line: 1, column: 1 }, "the text is too long");
    }
    let text = checked_text(text)?;
    let mut builder = Builder::new(limits);
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.take(event, Place::of(&span.start))?,
            Err(error) => return refuse(Place::of(error.marker()), error.info()),
        }
    }
    Ok(builder.root.unwrap_or(Value::Null))
}

/// Counted from 1; columns count characters.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn of(mark: &Marker) -> Self {
        Place {
            line: mark.line(),
            column: mark.col() + 1,
        }
    }

    fn after(text: &str) -> Self {
        let line_start = text.rfind('\n').map_or(0, |at| at + 1);
        Place {
            line: text.matches('\n').count() + 1,
            column: text[line_start..].chars().count() + 1,
        }
    }
}

fn refuse<T>(place: Place, reason: impl std::fmt::Display) -> Result<T, Failure> {
    Err(format!("line {}, column {}: {reason}", place.line, place.column).into())
}

/// Refuses what PyYAML refuses before it parses. The parser would end at a NUL.
fn checked_text(bytes: &[u8]) -> Result<&str, Failure> {
    let text = std::str::from_utf8(bytes).or_else(|error| {
        let valid = std::str::from_utf8(&bytes[..error.valid_up_to()])?;
        refuse(Place::after(valid), "invalid UTF-8")
    })?;
    let strange = |c: char| {
        (c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}'))
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    match text.find(strange) {
        Some(at) => refuse(Place::after(&text[..at]), "a control character"),
        None => Ok(text),
    }
}

/// A value uses this much of the limits.
#[derive(Clone, Copy, Default)]
struct Cost {
    bytes: usize,
    depth: usize,
    values: usize,
}

fn cost_of(value: &Value) -> Cost {
    let mut cost = Cost {
        values: 1,
        ..Cost::default()
    };
    let mut add = |key_bytes: usize, inner: &Value| {
        let inner = cost_of(inner);
        cost.bytes += key_bytes + inner.bytes;
        cost.values += inner.values;
        cost.depth = cost.depth.max(inner.depth);
    };
    match value {
        Value::Array(elements) => elements.iter().for_each(|element| add(0, element)),
        Value::Object(members) => members
            .iter()
            .for_each(|(key, member)| add(key.len(), member)),
        Value::String(text) => cost.bytes = text.len(),
        _ => {}
    }
    cost.depth += usize::from(value.is_array() || value.is_object());
    cost
}

enum Key {
    Member(String),
    Merge,
}

#[derive(Default)]
struct Mapping {
    members: Map<String, Value>,
    /// The mappings of `<<`; an earlier one's members hide a later one's.
    merged: Vec<Map<String, Value>>,
    has_merge: bool,
    key: Option<Key>,
}

impl Mapping {
    fn take_key(&mut self, text: &str, style: ScalarStyle) -> Result<(), String> {
        if text == "<<" && style == ScalarStyle::Plain {
            if std::mem::replace(&mut self.has_merge, true) {
                return Err("key '<<' occurs twice".into());
            }
            self.key = Some(Key::Merge);
        } else if self.members.contains_key(text) {
            let shown: String = text.chars().take(80).collect();
            return Err(format!("key '{shown}' occurs twice"));
        } else {
            self.key = Some(Key::Member(text.into()));
        }
        Ok(())
    }

    fn take_value(&mut self, value: Value) -> Result<(), String> {
        match (self.key.take(), value) {
            (Some(Key::Member(key)), value) => drop(self.members.insert(key, value)),
            (Some(Key::Merge), Value::Object(mapping)) => self.merged.push(mapping),
            (Some(Key::Merge), Value::Array(mappings)) => {
                for mapping in mappings {
                    match mapping {
                        Value::Object(mapping) => self.merged.push(mapping),
                        _ => return Err("'<<' takes a mapping or a list of mappings".into()),
                    }
                }
            }
            (Some(Key::Merge), _) => {
                return Err("'<<' takes a mapping or a list of mappings".into());
            }
            (None, _) => return Err("a key that is no scalar".into()),
        }
        Ok(())
    }

    fn finish(self) -> Value {
        let mut all = Map::new();
        for (key, value) in self.merged.into_iter().flatten() {
            all.entry(key).or_insert(value);
        }
        if all.is_empty() {
            return self.members.into();
        }
        all.extend(self.members);
        all.into()
    }
}

enum Container {
    List(Vec<Value>),
    Mapping(Mapping),
}

struct Builder<'a> {
    limits: &'a Limits,
    used: Cost,
    open: Vec<(Container, usize)>, // with the anchor's number; 0: none
    anchors: HashMap<usize, (Value, Cost)>,
    root: Option<Value>,
    has_document: bool,
}

impl<'a> Builder<'a> {
    fn new(limits: &'a Limits) -> Self {
        Builder {
            limits,
            used: Cost::default(),
            open: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            has_document: false,
        }
    }

    fn take(&mut self, event: Event, place: Place) -> Result<(), Failure> {
        match event {
            Event::DocumentStart(_) => {
                if std::mem::replace(&mut self.has_document, true) {
                    return refuse(place, "a second document");
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let cost = Cost {
                    bytes: text.len(),
                    values: 1,
                    ..Cost::default()
                };
                self.charge(cost, place)?;
                if let Some((Container::Mapping(mapping), _)) = self.open.last_mut() {
                    if mapping.key.is_none() {
                        mapping
                            .take_key(&text, style)
                            .or_else(|reason| refuse(place, reason))?;
                        return self.keep(&text.into_owned().into(), anchor, place);
                    }
                }
                let value =
                    scalar(&text, style, tag.as_deref()).or_else(|reason| refuse(place, reason))?;
                self.add(value, anchor, place)
            }
            Event::SequenceStart(anchor, tag) => self.start(
                Container::List(Vec::new()),
                "seq",
                anchor,
                tag.as_deref(),
                place,
            ),
            Event::MappingStart(anchor, tag) => {
                let mapping = Container::Mapping(Mapping::default());
                self.start(mapping, "map", anchor, tag.as_deref(), place)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some((Container::List(elements), anchor)) => {
                    self.add(elements.into(), anchor, place)
                }
                Some((Container::Mapping(mapping), anchor)) => {
                    self.add(mapping.finish(), anchor, place)
                }
                None => refuse(place, "an end without a start"),
            },
            Event::Alias(anchor) => {
                let Some(&(_, cost)) = self.anchors.get(&anchor) else {
                    return refuse(place, "an alias of a value that contains it");
                };
                self.charge(cost, place)?;
                let value = self.anchors[&anchor].0.clone();
                self.add(value, 0, place)
            }
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        container: Container,
        kind: &str,
        anchor: usize,
        tag: Option<&Tag>,
        place: Place,
    ) -> Result<(), Failure> {
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == kind)) {
            return refuse(place, format!("the tag {tag}, which has no form in JSON"));
        }
        self.charge(
            Cost {
                depth: 1,
                values: 1,
                ..Cost::default()
            },
            place,
        )?;
        self.open.push((container, anchor));
        Ok(())
    }

    /// Keeps a copy of a value that has an anchor.
    fn keep(&mut self, value: &Value, anchor: usize, place: Place) -> Result<(), Failure> {
        if anchor > 0 {
            let cost = cost_of(value);
            self.charge(Cost { depth: 0, ..cost }, place)?;
            self.anchors.insert(anchor, (value.clone(), cost));
        }
        Ok(())
    }

    /// Adds a finished value to what contains it.
    fn add(&mut self, value: Value, anchor: usize, place: Place) -> Result<(), Failure> {
        self.keep(&value, anchor, place)?;
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some((Container::List(elements), _)) => elements.push(value),
            Some((Container::Mapping(mapping), _)) => {
                return mapping
                    .take_value(value)
                    .or_else(|reason| refuse(place, reason));
            }
        }
        Ok(())
    }

    fn charge(&mut self, cost: Cost, place: Place) -> Result<(), Failure> {
        self.used.bytes += cost.bytes;
        self.used.values += cost.values;
        let Limits {
            bytes,
            depth,
            values,
        } = *self.limits;
        if self.open.len() + cost.depth > depth {
            return refuse(place, format!("nested deeper than {depth}"));
        }
        if self.used.values > values {
            return refuse(
                place,
                format!("more than {values} values, aliases included"),
            );
        }
        if self.used.bytes > bytes {
            return refuse(
                place,
                format!("more than {bytes} bytes of text, aliases included"),
            );
        }
        Ok(())
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    // PyYAML takes "!" alone as no tag.
    let tag = tag.filter(|tag| !(tag.handle.is_empty() && tag.suffix == "!"));
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => resolve(text),
            _ => text.into(),
        });
    };
    let name = if tag.is_yaml_core_schema() {
        tag.suffix.as_str()
    } else {
        ""
    };
    match (name, resolve(text)) {
        ("str", _) => Ok(text.into()),
        ("null", value @ Value::Null) | ("bool", value @ Value::Bool(_)) => Ok(value),
        ("int", value @ Value::Number(_)) if !value.is_f64() => Ok(value),
        ("float", Value::Number(number)) => Ok(number.as_f64().into()),
        _ => Err(format!("the tag {tag} does not fit its value")),
    }
}
